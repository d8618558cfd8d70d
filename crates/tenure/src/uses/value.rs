use std::error::Error;

/// Why a value could not be turned into bytes, or bytes into a value.
type Failed = Box<dyn Error + Send + Sync>;

/// What a [`Cache`](crate::Cache) can keep: a value that can be turned into bytes and back.
///
/// `Vec<u8>` and `String` can. With the feature `serde`, `Json` makes one of every
/// serde value. Implement it for another format, for example for your own types by postcard.
///
/// ```
/// # tenure::block_on(async {
/// use std::error::Error;
/// use std::time::Duration;
///
/// struct Degrees(f64);
///
/// impl tenure::CacheValue for Degrees {
///     const CODEC: &'static str = "degrees";
///     fn encode(&self) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
///         Ok(self.0.to_be_bytes().to_vec())
///     }
///     fn decode(bytes: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>> {
///         Ok(Self(f64::from_be_bytes(bytes.try_into()?)))
///     }
/// }
///
/// let outside = tenure::Locks::memory().cache("weather:outside")?;
/// let read = async || Ok::<_, std::io::Error>(Degrees(21.5));
/// let Degrees(now) = outside.get_or_compute(Duration::from_secs(60), read).await?.unwrap();
/// assert_eq!(now, 21.5);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
pub trait CacheValue: Sized {
    /// The format's name, which is kept beside each value: a word of letters, digits and `-`. A
    /// value that was kept under another name counts as missing, and is computed again.
    const CODEC: &'static str;

    /// The value as bytes.
    ///
    /// # Errors
    /// What keeps it from being written. The caller of the cache gets it as `is_invalid`.
    fn encode(&self) -> Result<Vec<u8>, Failed>;

    /// The value that these bytes are.
    ///
    /// # Errors
    /// What is wrong with them. The value counts as missing then, and is computed again.
    fn decode(bytes: &[u8]) -> Result<Self, Failed>;
}

impl CacheValue for Vec<u8> {
    const CODEC: &'static str = "bytes";

    fn encode(&self) -> Result<Vec<u8>, Failed> {
        Ok(self.clone())
    }

    fn decode(bytes: &[u8]) -> Result<Self, Failed> {
        Ok(bytes.to_vec())
    }
}

impl CacheValue for String {
    const CODEC: &'static str = "text";

    fn encode(&self) -> Result<Vec<u8>, Failed> {
        Ok(self.clone().into_bytes())
    }

    fn decode(bytes: &[u8]) -> Result<Self, Failed> {
        Ok(Self::from_utf8(bytes.to_vec())?)
    }
}

/// A serde value, which a [`Cache`](crate::Cache) keeps as JSON. Needs the feature `serde`.
///
/// ```
/// # tenure::block_on(async {
/// use std::time::Duration;
/// use tenure::Json;
///
/// let scores = tenure::Locks::memory().cache("scores")?;
/// let query = async || Ok::<_, std::io::Error>(Json(vec![3, 1, 4]));
/// let Json(top) = scores.get_or_compute(Duration::from_secs(60), query).await?.unwrap();
/// assert_eq!(top, [3, 1, 4]);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

#[cfg(feature = "serde")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> CacheValue for Json<T> {
    const CODEC: &'static str = "json";

    fn encode(&self) -> Result<Vec<u8>, Failed> {
        Ok(serde_json::to_vec(&self.0)?)
    }

    fn decode(bytes: &[u8]) -> Result<Self, Failed> {
        Ok(Self(serde_json::from_slice(bytes)?))
    }
}

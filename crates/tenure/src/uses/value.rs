use std::error::Error;

/// Why encoding or decoding a value failed.
type CodecError = Box<dyn Error + Send + Sync>;

/// A value that a [`Cache`](crate::Cache) can store, with its conversion to and from bytes.
///
/// Implemented by `Vec<u8>` and `String`. With the feature `serde`, `Json` wraps any serde value. Implement
/// it for other formats, for example for your own types with postcard.
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
    /// Name of the format, stored with each value: letters, digits and `-`. A value stored under another name
    /// counts as missing and is recomputed.
    const CODEC: &'static str;

    /// Encodes the value.
    ///
    /// # Errors
    /// Why the value cannot be encoded. The caller of the cache gets it as `is_invalid`.
    fn encode(&self) -> Result<Vec<u8>, CodecError>;

    /// Decodes the value.
    ///
    /// # Errors
    /// Why the bytes are not valid. The value then counts as missing and is recomputed.
    fn decode(bytes: &[u8]) -> Result<Self, CodecError>;
}

impl CacheValue for Vec<u8> {
    const CODEC: &'static str = "bytes";

    fn encode(&self) -> Result<Vec<u8>, CodecError> {
        Ok(self.clone())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(bytes.to_vec())
    }
}

impl CacheValue for String {
    const CODEC: &'static str = "text";

    fn encode(&self) -> Result<Vec<u8>, CodecError> {
        Ok(self.clone().into_bytes())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(Self::from_utf8(bytes.to_vec())?)
    }
}

/// A serde value that a [`Cache`](crate::Cache) stores as JSON. Requires the feature `serde`.
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

    fn encode(&self) -> Result<Vec<u8>, CodecError> {
        Ok(serde_json::to_vec(&self.0)?)
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(Self(serde_json::from_slice(bytes)?))
    }
}

//! Credentials that change while a program runs.

use std::fmt;
use std::sync::Arc;

use crate::error::Cause;

/// The login for a server, returned by the provider of `Locks::open_with_credentials`.
///
/// Use it for passwords or tokens that change while the program runs. A fixed login can be part of the URL.
///
/// ```
/// use tenure::Credentials;
///
/// let credentials = Credentials::new("locks", "secret");
/// assert!(!format!("{credentials:?}").contains("secret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    #[doc(hidden)]
    pub user: Option<String>,
    #[doc(hidden)]
    pub password: String,
}

impl Credentials {
    /// Credentials of a named user.
    ///
    /// ```
    /// let credentials = tenure::Credentials::new("locks", "secret");
    /// ```
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: password.into() }
    }

    /// Credentials of the server's default user, or of the user in the URL.
    ///
    /// ```
    /// let credentials = tenure::Credentials::of_default_user("secret");
    /// ```
    pub fn of_default_user(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }
}

/// Omits the password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Provides the credentials for each new connection.
#[derive(Clone)]
pub struct Provider(pub Arc<dyn Fn() -> Result<Credentials, Cause> + Send + Sync>);

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider")
    }
}

impl PartialEq for Provider {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Provider {}

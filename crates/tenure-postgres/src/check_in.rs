//! Checks a hold in, within a transaction of the caller's driver.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::names::LockKey;
use super::statements::{Which, check};
use super::url::PostgresTarget;
use super::{failure, state, takes};
use tenure_core::error::Result;
use tenure_core::name::LockName;
use tenure_core::owner::Owner;
use tenure_core::store::Failure;

/// An open transaction of a PostgreSQL driver, which [`Guard::check_in`] ties to a lock.
///
/// Implemented for a reference to a transaction of `tokio-postgres` and, with the feature `sqlx`, for a mutable
/// reference to one of `sqlx`. Not meant to be implemented elsewhere: other drivers run [`check_sql`].
///
/// [`Guard::check_in`]: https://docs.rs/tenure/latest/tenure/struct.Guard.html#method.check_in
/// [`check_sql`]: https://docs.rs/tenure/latest/tenure/postgres/fn.check_sql.html
pub trait Transaction: Send {
    /// Runs the check. `false` if the hold is over; the transaction cannot commit then.
    #[doc(hidden)]
    fn run<'a>(self, check: &'a HoldCheck) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a;
}

/// The statement that checks a hold in, and its parameters.
#[derive(Debug)]
pub struct HoldCheck {
    sql: String,
    name: String,
    owner: String,
    fence: i64,
}

impl HoldCheck {
    /// The check of a hold on the store of a URL.
    ///
    /// # Errors
    /// If that store is not on PostgreSQL.
    pub fn new(url: &str, name: &LockName, owner: &Owner, fence: u64) -> Result<Self, Failure> {
        if !url.split_once(':').is_some_and(|(scheme, _)| takes(scheme)) {
            let text = "check_in needs a lock on PostgreSQL";
            return Err(Failure::impossible(text));
        }
        let target = PostgresTarget::parse(url).map_err(|error| Failure::Refused(Arc::new(error)))?;
        Ok(Self {
            sql: check(&target.table()),
            name: LockKey::of(name).name,
            owner: owner.to_string(),
            fence: state::signed(fence),
        })
    }
}

impl Transaction for &tokio_postgres::Transaction<'_> {
    fn run<'a>(self, check: &'a HoldCheck) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a,
    {
        async move {
            let HoldCheck { sql, name, owner, fence } = check;
            let arguments: [(&(dyn ToSql + Sync), Type); 3] =
                [(name, Type::TEXT), (owner, Type::TEXT), (fence, Type::INT8)];
            match self.query_typed(sql, &arguments).await {
                Ok(_) => Ok(true),
                Err(error) if error.code() == Some(&SqlState::DIVISION_BY_ZERO) => Ok(false),
                Err(error) => Err(failure::of(error, Which::Ping)),
            }
        }
        .boxed()
    }
}

#[cfg(feature = "sqlx")]
impl Transaction for &mut sqlx::Transaction<'_, sqlx::Postgres> {
    fn run<'a>(self, check: &'a HoldCheck) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a,
    {
        async move {
            let HoldCheck { sql, name, owner, fence } = check;
            let checked = sqlx::query(sql).bind(name).bind(owner).bind(fence).persistent(false);
            match checked.execute(&mut **self).await {
                Ok(_) => Ok(true),
                Err(sqlx::Error::Database(error)) => match error.code().unwrap_or_default() {
                    code if code == SqlState::DIVISION_BY_ZERO.code() => Ok(false),
                    code => Err(failure::reported(&code, error.message())),
                },
                Err(error) => Err(Failure::NotSent(Arc::new(error))),
            }
        }
        .boxed()
    }
}

//! Checks a hold in, within a transaction of the caller's driver.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::statements::{Which, check};
use super::url::PostgresTarget;
use super::{failure, takes};
use tenure_core::rows::{LockKey, signed};
#[cfg(feature = "sqlx")]
use tenure_core::store::NO_TRANSACTION;
use tenure_core::store::{CheckedHold, Failure, Transaction};

/// PostgreSQL, as the database of a [`Transaction`].
#[derive(Debug)]
pub enum PostgreSql {}

/// The statement that checks a hold in, and its parameters.
struct HoldCheck {
    sql: String,
    name: String,
    owner: String,
    fence: i64,
}

impl HoldCheck {
    fn new(hold: &CheckedHold) -> Result<Self, Failure> {
        if !hold.is_in(takes) {
            return Err(Failure::impossible("this transaction of PostgreSQL needs a lock on PostgreSQL"));
        }
        let target = PostgresTarget::parse(&hold.url).map_err(|error| Failure::Refused(Arc::new(error)))?;
        Ok(Self {
            sql: check(&target.table()),
            name: LockKey::of(&hold.name).name,
            owner: hold.owner.to_string(),
            fence: signed(hold.fence),
        })
    }
}

impl Transaction<PostgreSql> for &tokio_postgres::Transaction<'_> {
    fn run<'a>(self, hold: &'a CheckedHold) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a,
    {
        async move {
            let HoldCheck { sql, name, owner, fence } = &HoldCheck::new(hold)?;
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
impl Transaction<PostgreSql> for &mut sqlx::Transaction<'_, sqlx::Postgres> {
    fn run<'a>(self, hold: &'a CheckedHold) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a,
    {
        (&mut **self).run(hold)
    }
}

/// `&mut *transaction`, as sqlx's own methods take it.
#[cfg(feature = "sqlx")]
impl Transaction<PostgreSql> for &mut sqlx::PgConnection {
    fn run<'a>(self, hold: &'a CheckedHold) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a,
    {
        async move {
            let HoldCheck { sql, name, owner, fence } = &HoldCheck::new(hold)?;
            if !sqlx::Connection::is_in_transaction(&*self) {
                return Err(Failure::impossible(NO_TRANSACTION));
            }
            let checked = sqlx::query(sql).bind(name).bind(owner).bind(fence).persistent(false);
            match checked.execute(&mut *self).await {
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

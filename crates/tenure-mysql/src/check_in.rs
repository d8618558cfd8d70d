//! Checks a hold in, within a transaction of the caller's driver.

#[cfg(feature = "sqlx")]
use futures_util::future::{BoxFuture, FutureExt};
#[cfg(feature = "sqlx")]
use tenure_core::rows::LockKey;
#[cfg(feature = "sqlx")]
use tenure_core::store::{CheckedHold, Failure, NO_TRANSACTION, Transaction};

/// MySQL or MariaDB, as the database of a [`Transaction`](tenure_core::store::Transaction).
#[derive(Debug)]
pub enum MySql {}

#[cfg(feature = "sqlx")]
impl Transaction<MySql> for &mut sqlx::Transaction<'_, sqlx::MySql> {
    fn run<'a>(self, hold: &'a CheckedHold) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a,
    {
        (&mut **self).run(hold)
    }
}

/// `&mut *transaction`, as sqlx's own methods take it.
#[cfg(feature = "sqlx")]
impl Transaction<MySql> for &mut sqlx::MySqlConnection {
    fn run<'a>(self, hold: &'a CheckedHold) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a,
    {
        async move {
            let database = super::url::database_of(&hold.url).filter(|_| hold.is_in(super::takes));
            let Some(database) = database else {
                return Err(Failure::impossible(
                    "this transaction of MySQL needs a lock on MySQL or MariaDB",
                ));
            };
            if !sqlx::Connection::is_in_transaction(&*self) {
                return Err(Failure::impossible(NO_TRANSACTION));
            }
            let (key, owner) = (LockKey::of(&hold.name), hold.owner.to_string());
            let sql = super::statements::check(&database, &key, &owner, hold.fence);
            // The driver only counts. A deadlock, or a statement that defines data, ends the server's transaction, and
            // then the first of these does nothing and the last one fails.
            sqlx::Executor::execute(&mut *self, "SAVEPOINT tenure_check_in").await.map_err(failed)?;
            let rows = sqlx::query(&sql).persistent(false).fetch_all(&mut *self).await.map_err(failed)?;
            sqlx::Executor::execute(&mut *self, "RELEASE SAVEPOINT tenure_check_in").await.map_err(failed)?;
            Ok(!rows.is_empty())
        }
        .boxed()
    }
}

#[cfg(feature = "sqlx")]
fn failed(error: sqlx::Error) -> Failure {
    /// There is no such savepoint.
    const MISSING: u16 = 1305;
    match error {
        sqlx::Error::Database(error) => match error.try_downcast::<sqlx::mysql::MySqlDatabaseError>() {
            Ok(error) if error.number() == MISSING => Failure::impossible(NO_TRANSACTION),
            Ok(error) => super::failure::reported(error.number(), error.message()),
            Err(error) => Failure::Refused(Failure::cause(error.to_string())),
        },
        error => Failure::NotSent(std::sync::Arc::new(error)),
    }
}

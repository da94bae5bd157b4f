//! The bare driver, for benchmarks: what programs write that have eight connections and no library.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use distlock_core::bench::Baseline;
use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use tokio::sync::Semaphore;

use crate::config::SqlServerConfig;
use crate::connect;
use crate::connection::{Connection, Param};
use crate::session::REQUEST_TIMEOUT;

const CONNECTIONS: usize = 8;
const ACQUIRE: &str = "DECLARE @got INT; EXEC @got = sp_getapplock @Resource = @P1, @LockMode = 'Exclusive', \
     @LockOwner = 'Session', @LockTimeout = 0; SELECT @got AS got";
const RELEASE: &str = "DECLARE @got INT; EXEC @got = sp_releaseapplock @Resource = @P1, @LockOwner = 'Session'; SELECT @got AS got";

struct BareDriver {
    config: SqlServerConfig,
    idle: Mutex<Vec<Connection>>,
    free: Semaphore,
}

pub(crate) async fn connect(url: StoreUrl) -> Result<Option<Box<dyn Baseline>>> {
    let config = SqlServerConfig::from_url(&url)?;
    let first = connect::open(&config).await?;
    Ok(Some(Box::new(BareDriver {
        config,
        idle: Mutex::new(vec![first]),
        free: Semaphore::new(CONNECTIONS),
    })))
}

impl BareDriver {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Baseline for BareDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let _permit =
            self.free.acquire().await.map_err(|_| Error::new(ErrorKind::Internal, "no connection"))?;
        let idle = self.idle().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => connect::open(&self.config).await?,
        };
        for text in [ACQUIRE, RELEASE] {
            connection.query(text, vec![Param::from(name)], REQUEST_TIMEOUT).await?;
        }
        self.idle().push(connection);
        Ok(())
    }

    /// The server counts batches, and shows the count only to those who may see its state.
    async fn server_requests(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Locks leave nothing, and rows of the store go when they are released.
    async fn clean_up(&self, prefix: &str) -> Result<()> {
        if prefix.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty prefix would remove everything"));
        }
        Ok(())
    }
}

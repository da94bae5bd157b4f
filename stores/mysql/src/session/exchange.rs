//! Requests of a session that take and release locks.

use std::collections::HashSet;
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::{Error, FencingToken, Result};

use super::actor::{Actor, Command, Drawn, ReleaseReply, TakeReply, Taken};
use super::statements::{self, Grant, Held, Mark, Release};
use crate::connections::REQUEST_TIMEOUT;
use crate::error::{Cause, Failure};
use crate::rows::{optional, time_left};

type Take = (Grant, Held, TakeReply);

impl Actor {
    pub(super) async fn exchange(&mut self, commands: Vec<Command>) -> Result<()> {
        let mut releases = Vec::new();
        let mut takes = Vec::new();
        let mut asked = HashSet::new();
        for command in commands {
            match command {
                Command::Release { release, reply } => releases.push((release, reply)),
                // It is sent alone.
                settle @ Command::Settle { .. } => refuse(settle, &errors::unexpected_reply("two at once")),
                Command::Take { grant, reply } | Command::Wait { grant, reply } => {
                    if reply.is_closed() {
                        continue;
                    }
                    if !self.held.contains(&grant.name) && asked.insert(grant.name) {
                        takes.push((grant, Held::No, reply));
                    } else {
                        let _ = reply.send(Ok(Taken::HeldHere));
                    }
                }
            }
        }
        if releases.is_empty() && takes.is_empty() {
            return Ok(());
        }
        self.take_all(takes, releases).await
    }

    pub(super) async fn take_all(
        &mut self,
        takes: Vec<Take>,
        releases: Vec<(Release, ReleaseReply)>,
    ) -> Result<()> {
        let released: Vec<Release> = releases.iter().map(|(release, _)| release.clone()).collect();
        let grants: Vec<(Grant, Held)> =
            takes.iter().map(|(grant, held, _)| (grant.clone(), *held)).collect();
        let text = statements::exchange(&self.tables, &released, &grants, self.timing.heartbeat);
        let (sent, held_nothing) = (self.clock.now(), self.held.is_empty());
        let outcome = self.query(&text, REQUEST_TIMEOUT).await;
        // Also by an error of a statement. Where something was held, only a heartbeat confirms that it still is.
        let is_answered = !matches!(&outcome, Err(failure) if failure.cause == Cause::Broken);
        if is_answered && held_nothing {
            self.confirm(sent);
        }
        let since = self.clock.now();
        let rows = match outcome {
            Ok(rows) => rows,
            Err(failure) if failure.cause == Cause::Broken => {
                answer_all(takes, releases, &failure.error);
                return Err(failure.error);
            }
            Err(failure) => return self.one_by_one(takes, releases, &failure).await,
        };
        for release in &released {
            self.held.remove(&release.name);
        }
        let column = |at: usize, column: &str| -> Option<i64> {
            rows.get(at).and_then(|row| optional(row, column).unwrap_or_default())
        };
        for (at, (_, reply)) in releases.into_iter().enumerate() {
            let _ = reply.send(Ok(column(at, "got") == Some(1)));
        }
        let mut unwanted = Vec::new();
        for (at, (grant, _, reply)) in takes.into_iter().enumerate() {
            let at = released.len() + at;
            let token = column(at, "token").and_then(|token| u64::try_from(token).ok());
            let answer = match (column(at, "got"), token, column(at, "pending")) {
                (Some(1), Some(token), Some(pending)) => Ok(Taken::Granted(Drawn {
                    token: FencingToken::new(token),
                    pending: time_left(pending),
                    since,
                })),
                (Some(0), _, _) => Ok(Taken::Busy),
                other => Err(errors::unexpected_reply(other)),
            };
            if matches!(&answer, Ok(Taken::Granted(_)) | Err(_)) {
                self.held.insert(grant.name);
            }
            let failed = answer.is_err();
            if reply.send(answer).is_err() || failed {
                let mark = Mark::NotGranted { paid: Duration::ZERO };
                unwanted.push(Release { name: grant.name, lock_id: grant.lock_id, mark });
            }
        }
        self.drop_locks(unwanted).await
    }

    /// Releases locks that were not granted. Releasing what is not held does nothing.
    pub(super) async fn drop_locks(&mut self, releases: Vec<Release>) -> Result<()> {
        if releases.is_empty() {
            return Ok(());
        }
        let text = statements::exchange(&self.tables, &releases, &[], self.timing.heartbeat);
        if let Err(failure) = self.query(&text, REQUEST_TIMEOUT).await {
            if failure.cause == Cause::Broken || releases.iter().all(|one| one.mark == Mark::Untouched) {
                return Err(failure.error);
            }
            // Its row cannot be written, and makes the next client wait.
            let bare = releases.into_iter().map(|one| Release { mark: Mark::Untouched, ..one }).collect();
            return Box::pin(self.drop_locks(bare)).await;
        }
        for release in &releases {
            self.held.remove(&release.name);
        }
        Ok(())
    }

    /// After a failure in the middle of a request: locks may have been taken, and no token drawn. They are released, and each
    /// operation is sent alone, so that one token row that another session keeps locked fails one lock.
    async fn one_by_one(
        &mut self,
        takes: Vec<Take>,
        releases: Vec<(Release, ReleaseReply)>,
        failure: &Failure,
    ) -> Result<()> {
        // Before a heartbeat asks for one of them.
        for (release, _) in &releases {
            self.held.remove(&release.name);
        }
        let taken: Vec<Release> = takes
            .iter()
            .map(|(Grant { name, lock_id, .. }, _, _)| Release {
                name: *name,
                lock_id: lock_id.clone(),
                mark: Mark::Untouched,
            })
            .collect();
        self.drop_locks(taken).await?;
        // They were released by the first statements of the request, or are now.
        for (release, reply) in releases {
            self.heartbeat_if_due().await?;
            self.drop_locks(vec![release]).await?;
            let _ = reply.send(Ok(true));
        }
        if takes.len() == 1 {
            for (_, _, reply) in takes {
                let _ = reply.send(Err(failure.error.clone()));
            }
            return Ok(());
        }
        for (grant, _, reply) in takes {
            self.heartbeat_if_due().await?;
            Box::pin(self.take_all(vec![(grant, Held::No, reply)], Vec::new())).await?;
        }
        Ok(())
    }
}

fn answer_all(takes: Vec<Take>, releases: Vec<(Release, ReleaseReply)>, error: &Error) {
    for (_, _, reply) in takes {
        let _ = reply.send(Err(error.clone()));
    }
    for (_, reply) in releases {
        let _ = reply.send(Err(error.clone()));
    }
}

pub(super) fn refuse(command: Command, error: &Error) {
    match command {
        Command::Take { reply, .. } | Command::Wait { reply, .. } => drop(reply.send(Err(error.clone()))),
        Command::Release { reply, .. } => drop(reply.send(Err(error.clone()))),
        Command::Settle { reply, .. } => drop(reply.send(Err(error.clone()))),
    }
}

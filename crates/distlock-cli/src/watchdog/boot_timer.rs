//! A timer on the clock that counts suspended time: after a suspend it fires at once.

use distlock::Moment;

#[cfg(target_os = "linux")]
pub(super) use linux::BootTimer;
#[cfg(not(target_os = "linux"))]
pub(super) use polling::BootTimer;

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::sync::Notify;

    use super::Moment;

    /// A kernel timer, and a thread that waits for it.
    #[derive(Debug)]
    pub(in crate::watchdog) struct BootTimer {
        timer: Arc<OwnedFd>,
        fired: Arc<Notify>,
    }

    impl BootTimer {
        pub(in crate::watchdog) fn new() -> io::Result<Self> {
            let timer = Arc::new(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?);
            let fired = Arc::new(Notify::new());
            let (waited, notify) = (Arc::clone(&timer), Arc::clone(&fired));
            std::thread::Builder::new().name("timer".to_owned()).spawn(move || {
                let mut expirations = [0; 8];
                loop {
                    match rustix::io::read(&waited, &mut expirations) {
                        Ok(_) => notify.notify_one(),
                        Err(rustix::io::Errno::INTR) => {}
                        Err(_) => return,
                    }
                }
            })?;
            Ok(BootTimer { timer, fired })
        }

        /// Resolves at this moment, and sometimes too early.
        ///
        /// # Cancel safety
        /// Cancel safe: the next call sets the timer again.
        pub(in crate::watchdog) async fn wait_until(&self, moment: Moment) {
            if moment == Moment::NEVER || self.set(moment).is_err() {
                return std::future::pending().await;
            }
            self.fired.notified().await;
        }

        fn set(&self, moment: Moment) -> io::Result<()> {
            // Zero disarms the timer.
            let nanos = moment.as_nanos().max(1);
            let value = Timespec {
                tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
            };
            let once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval: once, it_value: value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod polling {
    use std::io;
    use std::time::Duration;

    use distlock::{BootClock, Clock};

    use super::Moment;

    /// Short sleeps, with the clock read after each.
    #[derive(Debug)]
    pub(in crate::watchdog) struct BootTimer;

    impl BootTimer {
        pub(in crate::watchdog) fn new() -> io::Result<Self> {
            Ok(BootTimer)
        }

        /// Resolves at this moment.
        ///
        /// # Cancel safety
        /// Cancel safe.
        pub(in crate::watchdog) async fn wait_until(&self, moment: Moment) {
            const CHUNK: Duration = Duration::from_millis(100);
            if moment == Moment::NEVER {
                return std::future::pending().await;
            }
            loop {
                let left = moment.since(BootClock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(CHUNK)).await;
            }
        }
    }
}

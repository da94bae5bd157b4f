//! An alarm on the clock that goes on while the machine sleeps: after a suspend it rings at once, not when the rest of
//! some timer has run out.

use distlock::Moment;

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::Alarm;
#[cfg(target_os = "linux")]
pub(super) use linux::Alarm;

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

    /// A timer of the kernel, and a thread that waits for it.
    #[derive(Debug)]
    pub(in crate::watchdog) struct Alarm {
        timer: Arc<OwnedFd>,
        rung: Arc<Notify>,
    }

    impl Alarm {
        pub(in crate::watchdog) fn new() -> io::Result<Self> {
            let timer = Arc::new(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?);
            let rung = Arc::new(Notify::new());
            let (waited, bell) = (Arc::clone(&timer), Arc::clone(&rung));
            std::thread::Builder::new().name("alarm".to_owned()).spawn(move || {
                let mut rings = [0; 8];
                loop {
                    match rustix::io::read(&waited, &mut rings) {
                        Ok(_) => bell.notify_one(),
                        Err(rustix::io::Errno::INTR) => {}
                        Err(_) => return,
                    }
                }
            })?;
            Ok(Alarm { timer, rung })
        }

        /// Resolves when the clock shows this moment, and now and then too early.
        ///
        /// # Cancel safety
        /// Cancel safe: the next call sets the timer anew.
        pub(in crate::watchdog) async fn ring_at(&self, moment: Moment) {
            if moment == Moment::NEVER || self.set(moment).is_err() {
                return std::future::pending().await;
            }
            self.rung.notified().await;
        }

        fn set(&self, moment: Moment) -> io::Result<()> {
            // Zero would switch it off.
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
mod elsewhere {
    use std::io;
    use std::time::Duration;

    use distlock::{BootClock, Clock};

    use super::Moment;

    /// Short sleeps, and a look at the clock after each.
    #[derive(Debug)]
    pub(in crate::watchdog) struct Alarm;

    impl Alarm {
        pub(in crate::watchdog) fn new() -> io::Result<Self> {
            Ok(Alarm)
        }

        /// Resolves when the clock shows this moment.
        ///
        /// # Cancel safety
        /// Cancel safe: nothing happens but time.
        pub(in crate::watchdog) async fn ring_at(&self, moment: Moment) {
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

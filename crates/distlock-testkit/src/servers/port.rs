//! Loopback ports that stay reserved while their server is down.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

/// The range of ports, minus those that the kernel gives to outgoing connections.
const RANGE: RangeInclusive<u16> = 15_000..=32_000;

/// A TCP port on the loopback interface, reserved among all test processes of this machine until dropped.
///
/// "Bind to port 0, close, start the server" is not enough: while a killed server is down, the kernel may give its port to an
/// outgoing connection, and a client that reconnects in a loop may even connect to itself. So ports come from outside the
/// kernel's range, and a locked file reserves each one; the lock ends with the process.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: File,
}

impl Port {
    /// Reserves a port without a listener.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn reserve() -> Self {
        Self::find(Self::take)
    }

    /// Reserves two ports, the second `distance` above the first, for servers that require it.
    ///
    /// # Panics
    /// If no such pair is free.
    #[must_use]
    pub fn reserve_pair(distance: u16) -> (Self, Self) {
        Self::find(|number| {
            let second = number.checked_add(distance).filter(|second| RANGE.contains(second))?;
            Some((Self::take(number)?, Self::take(second)?))
        })
    }

    fn find<T>(take: impl Fn(u16) -> Option<T>) -> T {
        let count = u32::from(RANGE.end() - RANGE.start()) + 1;
        let first = RandomState::new().hash_one(std::process::id()) as u32;
        (0..count)
            .find_map(|step| take(RANGE.start() + (first.wrapping_add(step) % count) as u16))
            .unwrap_or_else(|| {
                panic!("no free port between {} and {} on 127.0.0.1", RANGE.start(), RANGE.end())
            })
    }

    fn take(number: u16) -> Option<Self> {
        if kernel_range().contains(&number) {
            return None;
        }
        let folder = std::env::temp_dir().join("distlock-ports");
        if fs::create_dir(&folder).is_ok() {
            // Shared by all users of the machine, like the temporary folder itself.
            let _ = fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777));
        }
        let path = folder.join(number.to_string());
        let file = OpenOptions::new().create(true).append(true).mode(0o666).open(path).ok()?;
        let free = file.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok();
        free.then_some(Self { number, _reservation: file })
    }

    /// The port's number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// The ports the kernel gives to outgoing connections; empty where it does not say, or where it uses all of ours.
fn kernel_range() -> RangeInclusive<u16> {
    let none = RangeInclusive::new(1, 0);
    let Ok(text) = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range") else { return none };
    let mut bounds = text.split_whitespace().filter_map(|word| word.parse::<u16>().ok());
    match (bounds.next(), bounds.next()) {
        (Some(low), Some(high)) if low > *RANGE.start() || high < *RANGE.end() => low..=high,
        _ => none,
    }
}

//! Whether another process of this machine has ended, as the kernel tells.
//!
//! A server cannot tell it: a connection that it sees close was closed by a process that ended, or by a proxy, a firewall or an
//! administrator, and then the process may live and not know yet. So each process binds a socket that the kernel closes when
//! the process ends, after its last thread. Its random name is written where the next holder reads it.
//!
//! The name begins with the kernel's boot id and the network namespace. Only a process that has the same two can ask, since abstract
//! Unix sockets are known within a namespace. A forked child keeps the socket open. If it closes all its descriptors instead, as a
//! program does that becomes a daemon, it has no name any more: the socket is its parent's. Two machines resumed from one snapshot
//! of a running machine have both in common: compare what the server knows of them too.
//!
//! On other systems than Linux, and where `/proc` or the sockets are not as expected, there is no name and no answer.

/// The name of this process's socket, which stays bound until the process ends; `None` where processes cannot tell. Ask each time
/// that it is written: a process that closed the descriptor has no name any more.
///
/// It consists of ASCII letters, digits and `-`, `:` and `/`, at most 128.
#[must_use]
pub fn name() -> Option<&'static str> {
    platform::name()
}

/// Whether the process with this socket has certainly ended. False if it lives, is on another machine or cannot be asked for.
#[must_use]
pub fn has_ended(name: &str) -> bool {
    platform::has_ended(name)
}

/// A copy of this process's socket: for as long as another process has it, this process has not ended. For a supervisor that ends
/// what this process leaves behind.
#[cfg(unix)]
#[must_use]
pub fn descriptor() -> Option<std::os::fd::OwnedFd> {
    platform::descriptor()
}

#[cfg(target_os = "linux")]
mod platform {
    use std::io::ErrorKind;
    use std::net::Shutdown;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::sync::OnceLock;

    const RANDOM_DIGITS: usize = 32;

    /// The socket of this process.
    pub(super) struct Bound {
        pub(super) name: String,
        pub(super) socket: UnixDatagram,
    }

    impl Bound {
        /// Whether the descriptor still leads to the socket of this name. If it does not, another process may have the socket.
        pub(super) fn is_ours(&self) -> bool {
            let is_bound = |there: SocketAddr| {
                address(&self.name).is_some_and(|own| own.as_abstract_name() == there.as_abstract_name())
            };
            self.socket.local_addr().is_ok_and(is_bound)
        }
    }

    static BOUND: OnceLock<Option<Bound>> = OnceLock::new();

    fn bound() -> Option<&'static Bound> {
        BOUND.get_or_init(bind).as_ref().filter(|bound| bound.is_ours())
    }

    pub(super) fn name() -> Option<&'static str> {
        bound().map(|bound| bound.name.as_str())
    }

    pub(super) fn descriptor() -> Option<OwnedFd> {
        bound()?.socket.as_fd().try_clone_to_owned().ok()
    }

    pub(super) fn has_ended(name: &str) -> bool {
        // A kernel that cannot find our own socket is not believed.
        self::name().is_some_and(|own| matches!(state(own), Some(State::Bound)))
            && matches!(state(name), Some(State::Closed))
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum State {
        Bound,
        Closed,
    }

    pub(super) fn bind() -> Option<Bound> {
        let random = (u128::from(getrandom::u64().ok()?) << 64) | u128::from(getrandom::u64().ok()?);
        let name = format!("{}/{random:0width$x}", machine()?, width = RANDOM_DIGITS);
        // In the namespace of this thread, as is the name.
        let socket = UnixDatagram::bind_addr(&address(&name)?).ok()?;
        // Nothing is ever read from it.
        socket.shutdown(Shutdown::Read).ok()?;
        (state(&name)? == State::Bound).then_some(Bound { name, socket })
    }

    /// `None`: this thread cannot ask.
    pub(super) fn state(name: &str) -> Option<State> {
        let (machine, _) = name.rsplit_once('/')?;
        let address = address(name)?;
        // A number of a namespace is used again, but only after it is gone with all its sockets.
        if machine != self::machine()? {
            return None;
        }
        match UnixDatagram::unbound().ok()?.connect_addr(&address) {
            Ok(()) => Some(State::Bound),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Some(State::Closed),
            Err(_) => None,
        }
    }

    /// The boot id of the kernel and the network namespace of this thread.
    fn machine() -> Option<String> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let boot = boot.trim_end();
        let is_id = boot.len() == 36 && boot.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
        is_id.then(|| format!("{boot}/{}:{}", namespace.dev(), namespace.ino()))
    }

    fn address(name: &str) -> Option<SocketAddr> {
        let (_, random) = name.rsplit_once('/')?;
        // Text of another form was never bound.
        let is_ours = random.len() == RANDOM_DIGITS && random.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_ours.then(|| SocketAddr::from_abstract_name(format!("distlock/{random}")).ok())?
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    pub(super) fn name() -> Option<&'static str> {
        None
    }

    #[cfg(unix)]
    pub(super) fn descriptor() -> Option<std::os::fd::OwnedFd> {
        None
    }

    pub(super) fn has_ended(_: &str) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixDatagram;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    const ENTRY: &str = "store::support::process_socket::tests::another_process";
    const VARIABLE: &str = "DISTLOCK_TEST_PROCESS_SOCKET";

    /// Tells its name and, if it is to have one, the id of a process that has a copy of its socket.
    #[test]
    fn another_process() {
        let Some(wanted) = std::env::var_os(VARIABLE) else { return };
        let mut keeper = Command::new("sleep");
        let keeper = keeper.arg("60").stdin(descriptor().unwrap()).stdout(Stdio::null());
        let mut keeper = (wanted == "keeper").then(|| keeper.spawn().unwrap());
        println!("name {} {}", name().unwrap(), keeper.as_ref().map_or(0, Child::id));
        // This process is killed before it.
        keeper.as_mut().map(Child::wait);
        std::thread::park();
    }

    fn start(what: &str) -> (Child, String, String) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([ENTRY, "--exact", "--nocapture"])
            .env(VARIABLE, what)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("name ")).unwrap();
        let (_, told) = line.split_once("name ").unwrap();
        let (theirs, keeper) = told.split_once(' ').unwrap();
        (child, theirs.to_owned(), keeper.to_owned())
    }

    fn signal(signal: &str, process: &str) {
        assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
    }

    #[test]
    fn a_killed_process_has_ended_and_a_living_or_stopped_one_has_not() {
        let (mut child, theirs, _) = start("alone");
        assert_ne!(Some(theirs.as_str()), name());
        assert!(!has_ended(&theirs));
        signal("-STOP", &child.id().to_string());
        assert!(!has_ended(&theirs));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(&theirs));
    }

    #[test]
    fn a_killed_process_has_not_ended_while_another_one_has_a_copy_of_its_socket() {
        let (mut child, theirs, keeper) = start("keeper");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!has_ended(&theirs));
        signal("-KILL", &keeper);
        let begun = Instant::now();
        while !has_ended(&theirs) {
            assert!(begun.elapsed() < Duration::from_secs(20), "the copy is closed");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_socket_whose_descriptor_was_closed_is_not_ours_although_another_process_may_have_it() {
        let bound = platform::bind().unwrap();
        assert!(bound.is_ours());
        // What the number of the descriptor leads to afterwards.
        let parents = bound.socket.try_clone().unwrap();
        let mut unbound = platform::Bound { socket: UnixDatagram::unbound().unwrap(), ..bound };
        assert!(!unbound.is_ours() && !has_ended(&unbound.name), "{parents:?}");
        unbound.socket = platform::bind().unwrap().socket;
        assert!(!unbound.is_ours());
    }

    #[test]
    fn a_name_of_another_machine_or_of_another_form_has_not_ended() {
        let own = name().unwrap();
        assert_eq!(Some(own), name());
        assert!(own.len() <= 128 && !has_ended(own), "{own}");
        let (machine, random) = own.rsplit_once('/').unwrap();
        let (boot, namespace) = machine.split_once('/').unwrap();
        let closed = "0".repeat(random.len());
        assert!(has_ended(&format!("{machine}/{closed}")));
        for other in [
            "",
            "/",
            random,
            &format!("{machine}/"),
            &format!("{machine}/{}", &closed[1..]),
            &format!("{machine}/{}x", &closed[1..]),
            &format!("{boot}/1{namespace}/{closed}"),
            &format!("{}/{namespace}/{closed}", boot.replace('-', "0")),
            &format!("{namespace}/{closed}"),
        ] {
            assert!(!has_ended(other), "{other}");
        }
    }
}

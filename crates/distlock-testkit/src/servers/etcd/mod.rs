//! etcd: one member, or a cluster of three.

mod cluster;
mod http;
mod peer_links;

use std::ffi::OsString;
use std::ops::Deref;
use std::time::Duration;

pub use cluster::EtcdCluster;

use super::data::DataFolder;
use super::port::Port;
use super::process::{Launch, ServerProcess};
use super::program::{ETCD, ETCD_NEXT, ETCDCTL};
use super::spawn;

/// How long a question to a member may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// A member of an etcd cluster; by default the only one.
#[derive(Debug)]
pub struct EtcdServer {
    process: ServerProcess,
    peer_port: u16,
}

impl EtcdServer {
    /// Starts a cluster of one member.
    #[must_use]
    pub fn start() -> Self {
        Self::configure().start()
    }

    /// A builder for a server with other settings than the defaults.
    pub fn configure() -> EtcdBuilder {
        EtcdBuilder::default()
    }

    /// The URL of the store on this member.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port())
    }

    /// The port for the other members.
    #[must_use]
    pub fn peer_port(&self) -> u16 {
        self.peer_port
    }

    /// Runs `etcdctl` against this member, with the API of version 3.
    ///
    /// # Panics
    /// If it fails, with its output.
    pub fn etcdctl(&self, args: &[&str]) -> String {
        self.try_etcdctl(args).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// [`etcdctl`](Self::etcdctl) for commands that may fail.
    ///
    /// # Errors
    /// If it fails, with its output.
    pub fn try_etcdctl(&self, args: &[&str]) -> Result<String, String> {
        let endpoint = format!("--endpoints=http://127.0.0.1:{}", self.port());
        let all: Vec<&str> = std::iter::once(endpoint.as_str()).chain(args.iter().copied()).collect();
        spawn::try_run_with(&ETCDCTL.find(), all, &[("ETCDCTL_API".to_owned(), "3".to_owned())])
    }

    /// The sum of a counter in the member's metrics, over all labels that contain `label`.
    ///
    /// # Panics
    /// If the member does not answer.
    #[must_use]
    pub fn metric(&self, name: &str, label: &str) -> u64 {
        let text = http::get(self.port(), "/metrics", ANSWER_LIMIT).expect("the metrics of a running member");
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.sum::<f64>() as u64
    }

    /// The version of the server.
    ///
    /// # Panics
    /// If the member does not answer.
    #[must_use]
    pub fn version(&self) -> String {
        let text = http::get(self.port(), "/version", ANSWER_LIMIT).expect("the version of a running member");
        text.split('"').nth(3).unwrap_or_default().to_owned()
    }

    /// The messages that the member has received from clients so far.
    #[must_use]
    pub fn messages_received(&self) -> u64 {
        self.metric("grpc_server_msg_received_total", "")
    }
}

impl Deref for EtcdServer {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

/// How to start an [`EtcdServer`].
#[derive(Debug, Default)]
#[must_use]
pub struct EtcdBuilder {
    args: Vec<OsString>,
    next_version: bool,
    durable: bool,
    tls: Option<Tls>,
    member: Option<MemberConfig>,
}

/// Certificates in PEM.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The server's certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// The authority that clients' certificates must be signed by, if they must have one.
    pub client_authority: Option<String>,
}

/// A member of a cluster of several.
#[derive(Debug)]
struct MemberConfig {
    name: String,
    port: Port,
    peer_port: Port,
    initial_cluster: String,
    /// Where the other members reach this one.
    advertised_peer_port: u16,
}

impl EtcdBuilder {
    /// Adds arguments, which override the defaults.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Starts the second version that `scripts/setup` installs.
    pub fn next_version(mut self) -> Self {
        self.next_version = true;
        self
    }

    /// Waits for the disk, as in production.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Encrypts connections of clients.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    fn member(mut self, member: MemberConfig) -> Self {
        self.member = Some(member);
        self
    }

    /// Starts the server and waits until it has a leader.
    #[must_use]
    pub fn start(self) -> EtcdServer {
        let server = self.spawn();
        server.wait_ready();
        server
    }

    fn spawn(self) -> EtcdServer {
        let program = if self.next_version { ETCD_NEXT.find() } else { ETCD.find() };
        let folder = DataFolder::create();
        let member = self.member.unwrap_or_else(|| {
            let (port, peer_port) = (Port::reserve(), Port::reserve());
            let number = peer_port.number();
            MemberConfig {
                name: "only".into(),
                port,
                initial_cluster: format!("only=http://127.0.0.1:{number}"),
                advertised_peer_port: number,
                peer_port,
            }
        });
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client_url = format!("{scheme}://127.0.0.1:{}", member.port.number());
        let peer_number = member.peer_port.number();
        let mut args: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: OsString| args.extend([OsString::from(name), value]);
        add("--name", member.name.into());
        add("--data-dir", folder.path().join("data").into());
        add("--listen-client-urls", client_url.clone().into());
        add("--advertise-client-urls", client_url.into());
        add("--listen-peer-urls", format!("http://127.0.0.1:{peer_number}").into());
        add(
            "--initial-advertise-peer-urls",
            format!("http://127.0.0.1:{}", member.advertised_peer_port).into(),
        );
        add("--initial-cluster", member.initial_cluster.into());
        // The election time-out also decides the shortest lease: 1.5 times, in whole seconds.
        add("--heartbeat-interval", "50".into());
        add("--election-timeout", "500".into());
        add("--logger", "zap".into());
        let secure = self.tls.is_some();
        if let Some(tls) = self.tls {
            args.extend(["--cert-file".into(), folder.write("server.pem", &tls.certificate).into()]);
            args.extend(["--key-file".into(), folder.write("server.key", &tls.key).into()]);
            if let Some(authority) = tls.client_authority {
                args.extend(["--trusted-ca-file".into(), folder.write("ca.pem", &authority).into()]);
                args.push("--client-cert-auth".into());
            }
        }
        if !self.durable {
            args.push("--unsafe-no-fsync".into());
        }
        let ready = move |port| if secure { http::accepts(port, ANSWER_LIMIT) } else { ready(port) };
        let launch = Launch::new(program, folder, member.port, ready).args(args).also_port(member.peer_port);
        EtcdServer { process: launch.args(self.args).spawn(), peer_port: peer_number }
    }
}

/// Healthy: it has a leader and no alarm.
fn ready(port: u16) -> Result<(), String> {
    let body = http::get(port, "/health", ANSWER_LIMIT).map_err(|error| error.to_string())?;
    if body.contains("true") { Ok(()) } else { Err(format!("it is not healthy: {body}")) }
}

//! ZooKeeper: one server, and an ensemble of three.

mod ensemble;
mod four_letter;

use std::ffi::OsString;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

pub use ensemble::ZookeeperEnsemble;

use super::data::DataFolder;
use super::port::Port;
use super::process::{Launch, ServerProcess};
use super::program::{JAVA, ZOOKEEPER_JAR};

/// The tick in milliseconds. The shortest session is two ticks.
const TICK: u32 = 200;

/// The memory of a server in tests: many run at the same time.
const HEAP_MEGABYTES: u32 = 128;

/// The library folder of Debian: the jar's own manifest names the jars that it needs.
const DEBIAN_JARS: &str = "/usr/share/java";

/// A ZooKeeper server. Sessions of 400 ms to a minute can be negotiated.
#[derive(Debug)]
pub struct ZookeeperServer {
    process: ServerProcess,
}

impl ZookeeperServer {
    /// Starts one server.
    #[must_use]
    pub fn start() -> Self {
        Self::configure().start()
    }

    /// A builder for a server with other settings than the defaults.
    pub fn configure() -> ZookeeperBuilder {
        ZookeeperBuilder::default()
    }

    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port())
    }

    /// The reply to a four-letter command, such as `mntr`; empty if the server does not answer.
    #[must_use]
    pub fn four_letter(&self, command: &str) -> String {
        four_letter::ask(self.port(), command, Duration::from_secs(5)).unwrap_or_default()
    }

    /// One value of `mntr`.
    #[must_use]
    pub fn monitor(&self, key: &str) -> Option<u64> {
        let text = self.four_letter("mntr");
        let mut pairs = text.lines().filter_map(|line| line.split_once('\t'));
        pairs.find(|(name, _)| *name == key).and_then(|(_, value)| value.trim().parse().ok())
    }

    /// `leader`, `follower` or `standalone`; empty if it does not serve.
    #[must_use]
    pub fn mode(&self) -> String {
        let text = four_letter::ask(self.port(), "srvr", Duration::from_millis(500)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("Mode: ")).unwrap_or_default().to_owned()
    }
}

impl Deref for ZookeeperServer {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

/// How to start a [`ZookeeperServer`].
#[derive(Debug, Default)]
#[must_use]
pub struct ZookeeperBuilder {
    settings: Vec<String>,
    properties: Vec<String>,
    heap: Option<u32>,
    files: Vec<(String, String)>,
    node: Option<(usize, Vec<Port>)>,
    unchecked: bool,
}

impl ZookeeperBuilder {
    /// Adds a line to `zoo.cfg`: `"maxSessionTimeout=4000"`. `{folder}` stands for the server's data folder.
    pub fn setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }

    /// Sets a system property of the server. `{folder}` stands for the server's data folder.
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push(format!("-D{name}={value}"));
        self
    }

    /// The most memory for nodes and watches, instead of 128 MB: a hundred thousand nodes need more.
    pub fn heap_megabytes(mut self, most: u32) -> Self {
        self.heap = Some(most);
        self
    }

    /// Puts a file into the server's data folder.
    pub fn file(mut self, name: &str, content: impl Into<String>) -> Self {
        self.files.push((name.to_owned(), content.into()));
        self
    }

    /// Starts the server and waits until it serves.
    #[must_use]
    pub fn start(self) -> ZookeeperServer {
        let server = self.spawn(Port::reserve());
        server.wait_ready();
        server
    }

    /// Starts a server that allows no `srvr`, and waits until it has opened its port.
    #[must_use]
    pub fn start_without_checks(mut self) -> ZookeeperServer {
        self.unchecked = true;
        self.start()
    }

    /// Makes it node `id` of an ensemble, with its other ports.
    fn node(mut self, id: usize, ports: Vec<Port>) -> Self {
        self.node = Some((id, ports));
        self
    }

    fn spawn(self, port: Port) -> ZookeeperServer {
        let folder = DataFolder::create();
        let here = folder.path().display().to_string();
        for (name, content) in &self.files {
            folder.write(name, content);
        }
        let mut lines = vec![
            format!("tickTime={TICK}"),
            "initLimit=20".to_owned(),
            "syncLimit=10".to_owned(),
            "maxSessionTimeout=60000".to_owned(),
            "maxClientCnxns=0".to_owned(),
            "admin.enableServer=false".to_owned(),
            "4lw.commands.whitelist=*".to_owned(),
            "clientPortAddress=127.0.0.1".to_owned(),
            format!("clientPort={}", port.number()),
            format!("dataDir={here}"),
        ];
        lines.extend(self.settings.iter().map(|line| line.replace("{folder}", &here)));
        if let Some((id, _)) = &self.node {
            folder.write("myid", &id.to_string());
        }
        let configuration = folder.write("zoo.cfg", &lines.join("\n"));
        let heap = format!("-Xmx{}m", self.heap.unwrap_or(HEAP_MEGABYTES));
        let mut args: Vec<OsString> = [
            heap.as_str(),
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            // What the kernel has survives kill -9; a test need not wait for the disk.
            "-Dzookeeper.forceSync=no",
            // A node that comes back asks for the leader again and again, less and less often.
            "-Dzookeeper.fastleader.minNotificationInterval=100",
            "-Dzookeeper.fastleader.maxNotificationInterval=500",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
        ]
        .map(Into::into)
        .into();
        args.extend(self.properties.iter().map(|property| property.replace("{folder}", &here).into()));
        args.extend(["-cp".into(), class_path(&ZOOKEEPER_JAR.find()).into()]);
        args.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".into());
        args.push(configuration.into());
        let mut launch =
            Launch::new(JAVA.find(), folder, port, if self.unchecked { answers } else { ready }).args(args);
        for port in self.node.into_iter().flat_map(|(_, ports)| ports) {
            launch = launch.also_port(port);
        }
        ZookeeperServer { process: launch.spawn() }
    }
}

/// The jar and what it needs: beside it in the project's own archive, named in its manifest in Debian.
fn class_path(jar: &Path) -> String {
    let folder = jar.parent().unwrap_or(Path::new("."));
    if folder == Path::new(DEBIAN_JARS) {
        // Without a logger the server logs nothing; without the other two, which the manifest forgets, it has no TLS.
        let more = ["slf4j-simple", "netty-codec", "netty-resolver"];
        let more = more.map(|name| format!("{DEBIAN_JARS}/{name}.jar")).join(":");
        return format!("{}:{more}", jar.display());
    }
    format!("{}:{}/*", jar.display(), folder.display())
}

/// Expects any reply.
fn answers(port: u16) -> Result<(), String> {
    let reply = four_letter::ask(port, "srvr", Duration::from_millis(500));
    reply.map(drop).map_err(|error| error.to_string())
}

/// Expects a mode: a server without a quorum says that it does not serve.
fn ready(port: u16) -> Result<(), String> {
    match four_letter::ask(port, "srvr", Duration::from_millis(500)) {
        Ok(text) if text.contains("Mode: ") => Ok(()),
        Ok(other) => Err(format!("unexpected reply to srvr: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

//! Carries the traffic between the members of a cluster, so that a member can be cut off from the others.
//!
//! Members have one address for all others, so the address does not say who connects. The first request on each connection
//! does: it has the header `X-Server-From`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::servers::port::Port;

/// The links to all members of a cluster. They end with the process.
#[derive(Debug)]
pub(super) struct PeerLinks {
    ports: Vec<Port>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// From member ids, as the header has them, to indexes.
    members: Mutex<HashMap<String, usize>>,
    cut_off: watch::Sender<Option<usize>>,
}

impl State {
    fn members(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether traffic from this member (its id, if it is known) to that one is cut. Of unknown origin it is, if anything is.
    fn is_cut(&self, from: Option<&str>, to: usize) -> bool {
        let Some(alone) = *self.cut_off.borrow() else { return false };
        let from = from.and_then(|id| self.members().get(id).copied());
        to == alone || from.is_none_or(|from| from == alone)
    }
}

impl PeerLinks {
    /// Opens a link to each of these addresses.
    pub(super) fn start(targets: Vec<SocketAddr>) -> Self {
        let ports: Vec<Port> = targets.iter().map(|_| Port::reserve()).collect();
        let state = Arc::new(State { members: Mutex::default(), cut_off: watch::Sender::new(None) });
        let routes: Vec<(SocketAddr, SocketAddr)> =
            ports.iter().zip(targets).map(|(port, target)| (port.addr(), target)).collect();
        let shared = Arc::clone(&state);
        thread::Builder::new()
            .name("peer-links".into())
            .spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                LocalSet::new().block_on(&runtime, async move {
                    for (member, (listen, target)) in routes.into_iter().enumerate() {
                        let listener = TcpListener::bind(listen).await.expect("the port was reserved");
                        tokio::task::spawn_local(accept(listener, member, target, Arc::clone(&shared)));
                    }
                    std::future::pending::<()>().await;
                });
            })
            .expect("cannot start the thread of the peer links");
        PeerLinks { ports, state }
    }

    /// The port that leads to this member.
    pub(super) fn port(&self, member: usize) -> u16 {
        self.ports[member].number()
    }

    /// Says which member has this id (hexadecimal).
    pub(super) fn name_member(&self, id: &str, member: usize) {
        self.state.members().insert(id.to_owned(), member);
    }

    /// Cuts one member off from all others, in both directions; `None` for none.
    pub(super) fn cut_off(&self, member: Option<usize>) {
        self.state.cut_off.send_replace(member);
    }
}

async fn accept(listener: TcpListener, member: usize, target: SocketAddr, state: Arc<State>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::task::spawn_local(forward(client, member, target, Arc::clone(&state)));
    }
}

async fn forward(mut client: TcpStream, to: usize, target: SocketAddr, state: Arc<State>) {
    let mut cut_off = state.cut_off.subscribe();
    let Ok(head) = tokio::time::timeout(Duration::from_secs(10), read_head(&mut client)).await else {
        return;
    };
    let text = String::from_utf8_lossy(&head).into_owned();
    let from =
        text.lines().find_map(|line| line.strip_prefix("X-Server-From: ")).map(|id| id.trim().to_owned());
    if state.is_cut(from.as_deref(), to) {
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    if server.write_all(&head).await.is_err() {
        return;
    }
    let mut copying = std::pin::pin!(copy_bidirectional(&mut client, &mut server));
    loop {
        tokio::select! {
            _ = &mut copying => return,
            _ = cut_off.changed() => {
                if state.is_cut(from.as_deref(), to) {
                    return;
                }
            }
        }
    }
}

/// The beginning of the first request, up to the end of its headers.
async fn read_head(client: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < 64 * 1024 {
        match client.read_buf(&mut head).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    head
}

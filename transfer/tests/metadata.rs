//! Handshakes over real sockets, and keys at a metadata server that forgets.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use siding_transfer::loops::IoLoops;
use siding_transfer::metadata::{
    Described, Endpoint, MetadataServer, Publication, descriptor_of, notify, probe,
};
use siding_transfer::peers::Peers;
use siding_transfer::{Door, Listener};
use siding_wire::descriptor::{Buffer, Descriptor};
use siding_wire::handshake::{Kind, Notice};
use siding_wire::keys::RpcMeta;

const LONG: Duration = Duration::from_secs(60);

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(work)
}

fn descriptor(name: &str) -> Descriptor {
    Descriptor::tcp(name, 4000, vec![Buffer::tcp("cpu:0", 1 << 46, 4096)])
}

fn endpoint(loops: &IoLoops, described: &Described) -> Endpoint {
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let door = Door {
        peers: Peers::Any,
        max_connections: 100,
    };
    Endpoint::start(listener, loops, door, described.clone()).unwrap()
}

/// Sends bytes, and gives all that comes back.
fn raw(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn each_kind_is_answered_even_beside_peers_that_say_nothing() {
    let loops = IoLoops::start(1).unwrap();
    let described = Described::default();
    let endpoint = endpoint(&loops, &described);
    let address = endpoint.address();
    let peer = address.to_string();
    let silent: Vec<_> = (0..20)
        .map(|at| {
            let mut stream = TcpStream::connect(address).unwrap();
            // Nothing, half a length, or a length without what it announces.
            stream
                .write_all(&[0, 0, 16, 0, 0, 0, 0, 0, 1][..at % 10])
                .unwrap();
            stream
        })
        .collect();
    let started = Instant::now();
    let ours = Descriptor::tcp("me:1", 0, Vec::new());
    assert!(block_on(descriptor_of(&peer, &ours, LONG)).is_err());
    described.set(Some(descriptor(&peer)));
    let found = block_on(descriptor_of(&peer, &ours, LONG)).unwrap();
    assert_eq!(found, descriptor(&peer));
    assert!(block_on(probe(&peer, LONG)).unwrap());
    let notice = Notice {
        name: "me:1".to_owned(),
        notify_msg: "hello".to_owned(),
    };
    assert_eq!(
        block_on(notify(&peer, &notice, LONG)).unwrap(),
        Notice::taken()
    );
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "silent peers delay"
    );
    // Counted a moment after the answer is sent.
    let answered = |kind| endpoint.counters().snapshot().answered(kind);
    for kind in [Kind::Metadata, Kind::Notify, Kind::Probe] {
        until(|| answered(kind) >= 1);
        assert_eq!(answered(kind), 1, "{kind:?}");
    }
    drop(silent);
    assert!(block_on(endpoint.stop(LONG)));
    assert_eq!(loops.stop(LONG), 0);
}

#[test]
fn connections_are_refused_with_a_reason_in_the_form_that_was_asked() {
    let loops = IoLoops::start(1).unwrap();
    let endpoint = endpoint(&loops, &Described::default());
    let json = br#"{"local_nic_path":"a@rxe0","peer_nic_path":"b@rxe0","qp_num":[1]}"#;
    for kind in [&[][..], &[0][..]] {
        let mut asked = ((json.len() + kind.len()) as u64).to_le_bytes().to_vec();
        asked.extend(kind);
        asked.extend(json);
        let answer = raw(endpoint.address(), &asked);
        let (length, body) = answer.split_at(8);
        assert_eq!(
            u64::from_le_bytes(length.try_into().unwrap()),
            body.len() as u64
        );
        assert_eq!(&body[..kind.len()], kind);
        let answer: serde_json::Value = serde_json::from_slice(&body[kind.len()..]).unwrap();
        assert_eq!(answer["peer_nic_path"], "a@rxe0");
        let why = answer["reply_msg"].as_str().unwrap();
        assert!(why.contains("served over TCP"), "{why}");
    }
    // What is none gets no answer, and does no harm.
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 8],
        b"\x02\0\0\0\0\0\0\0\x09{",
        b"\x03\0\0\0\0\0\0\0\x01no",
    ] {
        assert_eq!(raw(endpoint.address(), bytes), b"");
    }
    // Counted a moment after the connection is closed.
    until(|| endpoint.counters().snapshot().failed >= 4);
    assert_eq!(endpoint.counters().snapshot().failed, 4);
    drop(endpoint);
    loops.stop(LONG);
}

type Store = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// A metadata server as Mooncake's: 400 for an rpc_meta that is there already.
fn metadata_server() -> (String, Store) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metadata", listener.local_addr().unwrap());
    let store = Store::default();
    let shared = Arc::clone(&store);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut reader = BufReader::new(&stream);
            let (mut line, mut length) = (String::new(), 0);
            reader.read_line(&mut line).unwrap();
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).unwrap();
                let header = header.to_lowercase();
                if let Some(text) = header.strip_prefix("content-length:") {
                    length = text.trim().parse().unwrap();
                }
                if header.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let mut words = line.split(' ');
            let method = words.next().unwrap();
            let key = words
                .next()
                .unwrap()
                .strip_prefix("/metadata?key=")
                .unwrap();
            let key = key.replace("%2F", "/").replace("%3A", ":");
            let mut store = shared.lock().unwrap();
            let (status, body) = match method {
                "PUT" if key.contains("rpc_meta") && store.contains_key(&key) => (400, Vec::new()),
                "PUT" => {
                    store.insert(key, body);
                    (200, Vec::new())
                }
                "GET" => store
                    .get(&key)
                    .map_or((404, Vec::new()), |body| (200, body.clone())),
                _ => (
                    if store.remove(&key).is_some() {
                        200
                    } else {
                        404
                    },
                    Vec::new(),
                ),
            };
            let head = format!(
                "HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let mut stream = &stream;
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&body).unwrap();
        }
    });
    (url, store)
}

fn until(what: impl Fn() -> bool) {
    let started = Instant::now();
    while !what() {
        assert!(started.elapsed() < LONG, "never");
        thread::sleep(Duration::from_millis(5));
    }
}

fn meta(host: &str, rpc_port: u16) -> RpcMeta {
    RpcMeta {
        ip_or_host_name: host.to_owned(),
        rpc_port,
    }
}

const META: &str = "mooncake/blue/rpc_meta/kv";

#[test]
fn keys_are_put_again_when_they_are_lost_and_go_with_the_segment() {
    let (url, store) = metadata_server();
    let loops = IoLoops::start(1).unwrap();
    let server = MetadataServer::new(&url, Some("blue".to_owned())).unwrap();
    // Ours from before, with another port.
    let stale = br#"{"ip_or_host_name":"10.0.0.1","rpc_port":1}"#.to_vec();
    store.lock().unwrap().insert(META.to_owned(), stale);
    let start = |host| {
        let interval = Duration::from_millis(20);
        let (server, meta) = (server.clone(), meta(host, 2));
        Publication::start(&loops, server, &descriptor("kv"), meta, interval)
    };
    let ours = start("10.0.0.1").unwrap().unwrap();
    until(|| ours.counters().snapshot().published);
    let found = block_on(async {
        let descriptor = server.descriptor("kv").await.unwrap();
        (descriptor, server.rpc_meta("kv").await.unwrap())
    });
    assert_eq!(found, (Some(descriptor("kv")), Some(meta("10.0.0.1", 2))));
    // Somebody else of the same name is refused, and deletes nothing.
    let other = start("10.0.0.2").unwrap().unwrap();
    until(|| other.counters().snapshot().failures > 0);
    assert!(!other.counters().snapshot().published);
    block_on(other.withdraw()).unwrap();
    assert_eq!(store.lock().unwrap().len(), 2);
    store.lock().unwrap().clear();
    until(|| store.lock().unwrap().len() == 2);
    until(|| ours.counters().snapshot().republished > 0);
    block_on(ours.withdraw()).unwrap();
    assert!(store.lock().unwrap().is_empty());
    assert_eq!(loops.stop(LONG), 0);
}

#[test]
fn addresses_that_are_none_say_what_would_work() {
    for (url, why) in [
        ("https://a/metadata", "does not start with 'http://'"),
        ("10.0.0.1:8080", "does not start with 'http://'"),
        ("http://a/metadata?key=b", "has a query"),
        ("a b", "no URL"),
    ] {
        let error = MetadataServer::new(url, None).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(error.contains("http://10.0.0.1:8080/metadata"), "{error}");
    }
}

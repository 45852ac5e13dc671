use std::path::PathBuf;
use std::time::Instant;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use super::*;
use crate::sockets;

const UID: &str = "0b3e9f5c";

/// A pod whose sidecar answers each connection in its own way.
struct Pod(TempDir);

impl Pod {
    fn new() -> (Self, UnixListener) {
        let kubelet = TempDir::new().unwrap();
        let run = format!("pods/{UID}/volumes/kubernetes.io~empty-dir/siding-run");
        let run: PathBuf = kubelet.path().join(run);
        std::fs::create_dir_all(&run).unwrap();
        let listener = UnixListener::bind(run.join("agent.sock")).unwrap();
        (Self(kubelet), listener)
    }

    fn socket(&self) -> FoundSocket {
        sockets::find(self.0.path(), UID).unwrap()
    }
}

/// Answers one request with these bytes, over and over; then keeps the connection open.
async fn say(listener: UnixListener, answer: Vec<u8>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let answer = answer.clone();
        tokio::spawn(async move {
            let mut request = vec![0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(&answer).await;
            std::future::pending::<()>().await;
        });
    }
}

fn http(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(work)
}

async fn asked(answer: Vec<u8>) -> Result<SidecarReport, NoAnswer> {
    let (pod, listener) = Pod::new();
    tokio::spawn(say(listener, answer));
    status(&pod.socket()).await
}

#[test]
fn a_status_is_read_and_gpus_are_told() {
    block_on(async {
        let report = asked(http(r#"{"state":"ready","later":[1]}"#))
            .await
            .unwrap();
        assert_eq!(report.state, crate::report::ReportedState::Ready);
        let (pod, listener) = Pod::new();
        let heard = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let mut length = 0;
            while !request[..length].ends_with(b"}") {
                length += stream.read(&mut request[length..]).await.unwrap();
            }
            stream.write_all(&http("null")).await.unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        });
        tell_gpus(&pod.socket(), &["GPU-aa".to_owned()])
            .await
            .unwrap();
        let heard = heard.await.unwrap();
        assert!(heard.starts_with("PUT /v1/gpus HTTP/1.1\r\n"), "{heard}");
        assert!(
            heard.ends_with("\r\n\r\n{\"gpus\":[\"GPU-aa\"]}"),
            "{heard}"
        );
    });
}

#[test]
fn junk_huge_and_refusing_answers_are_told_apart() {
    block_on(async {
        let error = asked(http("{")).await.unwrap_err();
        assert!(matches!(error, NoAnswer::Unreadable(_)), "{error}");
        let error = asked(http(r#"{"segments":7}"#)).await.unwrap_err();
        assert!(matches!(error, NoAnswer::Unreadable(_)), "{error}");
        let huge = format!("\"{}\"", "x".repeat(2 << 20));
        let error = asked(http(&huge)).await.unwrap_err();
        assert!(matches!(error, NoAnswer::Body(_)), "{error}");
        // A length is announced that never comes.
        let endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec();
        let error = asked(endless).await.unwrap_err();
        assert!(
            matches!(error, NoAnswer::Body(_) | NoAnswer::TooSlow),
            "{error}"
        );
        let error = asked(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_vec()).await;
        assert!(matches!(error, Err(NoAnswer::Refused(code)) if code == 503));
        let error = asked(b"SSH-2.0-x\r\n".to_vec()).await.unwrap_err();
        assert!(matches!(error, NoAnswer::Broken(_)), "{error}");
        let head = format!("HTTP/1.1 200 OK\r\nLong: {}\r\n\r\n", "x".repeat(64 << 10));
        let error = asked(head.into_bytes()).await.unwrap_err();
        assert!(matches!(error, NoAnswer::Broken(_)), "{error}");
    });
}

#[test]
fn a_hung_sidecar_takes_its_time_and_no_longer() {
    block_on(async {
        let started = Instant::now();
        // It accepts and is silent; and one that does not even accept, with a full queue.
        let error = asked(Vec::new()).await.unwrap_err();
        assert!(matches!(error, NoAnswer::TooSlow), "{error}");
        assert!(started.elapsed() < PATIENCE * 2);
        let (pod, listener) = Pod::new();
        drop(listener);
        let error = status(&pod.socket()).await.unwrap_err();
        assert!(matches!(error, NoAnswer::Connect(_)), "{error}");
    });
}

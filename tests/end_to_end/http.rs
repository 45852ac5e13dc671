//! What the sidecar tells over HTTP, as Prometheus and people read it.

use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use siding_tests::{Server, http, siding, whole_machine};

fn serve() -> Server {
    let mut command = siding();
    command.args([
        "mount",
        "--segment",
        "kv=16Mi,page=4Ki",
        "--cap",
        "3",
        "--serve",
    ]);
    Server::start(command.args(["--listen", "127.0.0.1:0", "--log-level", "info"]))
}

/// The value of a sample.
fn sample(metrics: &str, name: &str) -> f64 {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in:\n{metrics}"))
        .parse()
        .unwrap()
}

#[test]
fn metrics_tell_the_same_as_status_and_pass_promtool() {
    let _alone = whole_machine();
    let mut server = serve();
    let status = server.ready();
    let (code, metrics) = http::get(&server.address, "/metrics").unwrap();
    assert_eq!(code, 200);
    assert_eq!(
        sample(
            &metrics,
            "siding_segment_bytes{page=\"4Ki\",segment=\"kv\"}"
        ),
        f64::from(16 << 20)
    );
    assert_eq!(sample(&metrics, "siding_registration_cap"), 3.0);
    assert_eq!(sample(&metrics, "siding_registration_inflight"), 0.0);
    assert_eq!(sample(&metrics, "siding_pinned_bytes"), f64::from(16 << 20));
    let labels = "{backend=\"io_uring\",memory=\"host\",nic=\"none\",outcome=\"ok\"}";
    assert_eq!(
        sample(
            &metrics,
            &format!("siding_registration_seconds_count{labels}")
        ),
        1.0
    );
    assert_eq!(
        sample(&metrics, "siding_registration_queue_seconds_count"),
        1.0
    );
    for phase in ["map", "register"] {
        let told = sample(
            &metrics,
            &format!("siding_segment_phase_seconds{{phase=\"{phase}\",segment=\"kv\"}}"),
        );
        assert_eq!(
            Some(told),
            status["segments"][0]["seconds"][phase].as_f64(),
            "{phase}"
        );
    }
    assert!(
        !metrics.contains("phase=\"publish\""),
        "what did not happen is absent, not 0"
    );

    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(metrics.as_bytes())
        .unwrap();
    let said = promtool.wait_with_output().unwrap();
    assert!(
        said.status.success() && said.stdout.is_empty() && said.stderr.is_empty(),
        "{said:?}"
    );
    assert_eq!(server.end(Signal::INT).code(), Some(0));
}

#[test]
fn every_path_of_the_openapi_document_answers() {
    let _alone = whole_machine();
    let server = serve();
    let _ = server.ready();
    let (_, document) = http::get(&server.address, "/openapi.json").unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    let paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    for path in [
        "/metrics",
        "/healthz",
        "/startupz",
        "/readyz",
        "/v1/status",
        "/v1/segments",
        "/openapi.json",
    ] {
        assert!(
            paths.iter().any(|p| *p == path),
            "{path} is not documented: {paths:?}"
        );
    }
    for path in paths {
        let (code, _) = http::get(&server.address, &path.replace("{name}", "kv")).unwrap();
        assert_eq!(code, 200, "{path}");
    }
    assert_eq!(
        http::get(&server.address, "/v1/segments/other").unwrap().0,
        404
    );
    assert_eq!(http::get(&server.address, "/nothing").unwrap().0, 404);
}

//! Every route in every state, over a real socket.

use std::fs;

use serde_json::{Value, json};
use siding_crds::reasons::Reason;
use siding_fixtures::http::{Response, Server, ask, get};
use siding_topology::Root;
use tempfile::TempDir;

use super::{router, serve};
use crate::board::{Board, FailureStatus, Phase, RegistrationStatus, SegmentState, State};
use crate::metrics::Metrics;

/// A board that is served, and the tree that stands for the machine.
struct Fixture {
    board: Board,
    machine: TempDir,
    server: Server,
}

impl Fixture {
    fn new() -> Self {
        let machine = TempDir::new().unwrap();
        let board = Board::new([("kv", 4 << 30), ("index/é", 1 << 21)], Metrics::new());
        let routes = router(board.clone(), Root::at(machine.path()));
        let server = Server::start(|listener, until| serve(listener, routes, until));
        Self {
            board,
            machine,
            server,
        }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.machine.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn get(&self, path: &str) -> Response {
        get(self.server.address, path)
    }

    fn ready(&self) {
        self.board.update(|status| {
            status.state = State::Ready;
            status.total_seconds = Some(2.5);
            status.registration = Some(RegistrationStatus {
                backend: "io_uring".to_owned(),
                reason: "usable".to_owned(),
                cap: Some(6),
                cap_reason: "8 cores".to_owned(),
                rings: Some(2),
            });
        });
        self.board.segment(0, |kv| {
            kv.state = SegmentState::Ready;
            kv.page = Some("2Mi".to_owned());
            kv.seconds = [(Phase::Map, 0.25), (Phase::Touch, 2.0)].into();
            kv.registered_bytes = 4 << 30;
        });
        self.board
            .segment(1, |index| index.state = SegmentState::Ready);
        self.board.touched(0, 4 << 30);
    }
}

/// Checks a problem document and returns its detail.
fn problem(response: &Response, status: u16, title: &str, error: &str) -> String {
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!(
        response.header("content-type"),
        Some("application/problem+json")
    );
    let body = response.json();
    assert_eq!(body["status"], status);
    assert_eq!(body["title"], title);
    assert_eq!(body["error"], error);
    body["detail"].as_str().unwrap().to_owned()
}

fn unavailable(response: &Response, error: &str) -> String {
    problem(response, 503, "Service Unavailable", error)
}

fn good(response: &Response) -> Value {
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.header("content-type"), Some("application/json"));
    response.json()
}

#[test]
fn probes_while_mounting() {
    let fixture = Fixture::new();
    assert_eq!(good(&fixture.get("/healthz")), json!({"state": "mounting"}));
    let touching = |segment: &mut crate::board::SegmentStatus| segment.state = SegmentState::Touch;
    for (change, want) in [
        (
            None,
            "0 of 2 segments mounted; waiting for kv (not begun), index/é (not begun)",
        ),
        (
            Some(SegmentState::Touch),
            "0 of 2 segments mounted; waiting for kv (1024 of 4294967296 bytes touched), index/é (2097152 of 2097152 bytes touched)",
        ),
        (
            Some(SegmentState::Ready),
            "1 of 2 segments mounted; waiting for index/é (2097152 of 2097152 bytes touched)",
        ),
    ] {
        if let Some(state) = change {
            fixture.board.segment(1, touching);
            fixture.board.segment(0, |kv| kv.state = state);
        }
        if change == Some(SegmentState::Touch) {
            fixture.board.touched(0, 1024);
            fixture.board.touched(1, 1 << 21);
        }
        for path in ["/startupz", "/readyz"] {
            assert_eq!(unavailable(&fixture.get(path), "mounting"), want, "{path}");
        }
    }
    fixture
        .board
        .segment(1, |index| index.state = SegmentState::Ready);
    let detail = unavailable(&fixture.get("/readyz"), "mounting");
    assert_eq!(detail, "all segments are mounted; finishing");
}

#[test]
fn probes_when_ready_failed_and_stopping() {
    let fixture = Fixture::new();
    fixture.board.update(|status| {
        status.state = State::Failed;
        status.failure = Some(FailureStatus {
            reason: Reason::HugePagesShort,
            message: "segments[kv]: no free huge pages".to_owned(),
        });
    });
    assert_eq!(good(&fixture.get("/healthz")), json!({"state": "failed"}));
    for path in ["/startupz", "/readyz"] {
        assert_eq!(
            unavailable(&fixture.get(path), "mountFailed"),
            "mounting failed: segments[kv]: no free huge pages"
        );
    }

    // Stopped before it was ever ready.
    fixture
        .board
        .update(|status| status.state = State::Stopping);
    assert_eq!(good(&fixture.get("/healthz")), json!({"state": "stopping"}));
    let stopping = "segments are being unregistered and unmapped";
    for path in ["/startupz", "/readyz"] {
        assert_eq!(unavailable(&fixture.get(path), "stopping"), stopping);
    }

    fixture.ready();
    for path in ["/healthz", "/startupz", "/readyz"] {
        assert_eq!(
            good(&fixture.get(path)),
            json!({"state": "ready"}),
            "{path}"
        );
    }

    // Stopped after it was ready: it has started, and is ready no more.
    fixture
        .board
        .update(|status| status.state = State::Stopping);
    assert_eq!(
        good(&fixture.get("/startupz")),
        json!({"state": "stopping"})
    );
    assert_eq!(unavailable(&fixture.get("/readyz"), "stopping"), stopping);
}

#[test]
fn status_and_segments() {
    let fixture = Fixture::new();
    let status = good(&fixture.get("/v1/status"));
    assert_eq!(status["state"], "mounting");
    assert_eq!(status["pinnedBytes"], Value::Null);
    assert_eq!(status["registration"], Value::Null);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));

    fixture.ready();
    fixture.write("proc/self/status", "VmPin:\t    2048 kB\n");
    let status = good(&fixture.get("/v1/status"));
    assert_eq!(status["state"], "ready");
    assert_eq!(status["pinnedBytes"], 2 << 20);
    assert_eq!(status["totalSeconds"], 2.5);
    assert_eq!(status["registration"]["cap"], 6);
    let kv = &status["segments"][0];
    assert_eq!(kv["name"], "kv");
    assert_eq!(kv["seconds"], json!({"map": 0.25, "touch": 2.0}));
    assert_eq!(kv["touchedBytes"], 4_u64 << 30);

    // Read anew at each request.
    fixture.write("proc/self/status", "VmPin:\t    0 kB\n");
    assert_eq!(good(&fixture.get("/v1/status"))["pinnedBytes"], 0);

    assert_eq!(good(&fixture.get("/v1/segments")), status["segments"]);
    assert_eq!(&good(&fixture.get("/v1/segments/kv")), kv);
    let other = good(&fixture.get("/v1/segments/index%2F%C3%A9"));
    assert_eq!(other, status["segments"][1]);
}

#[test]
fn a_segment_that_is_not_there() {
    let fixture = Fixture::new();
    for (name, said) in [
        ("kw", "\"kw\"".to_owned()),
        ("KV", "\"KV\"".to_owned()),
        ("%0d%0a%22", r#""\r\n\"""#.to_owned()),
        ("%ff", "of a name that is not UTF-8".to_owned()),
        (&"x".repeat(5000), format!("\"{}…\"", "x".repeat(200))),
    ] {
        let response = fixture.get(&format!("/v1/segments/{name}"));
        assert_eq!(
            problem(&response, 404, "Not Found", "unknownSegment"),
            format!("there is no segment {said}; the segments are: kv, index/é")
        );
        assert_eq!(response.json()["available"], json!(["kv", "index/é"]));
    }
}

#[test]
fn metrics_are_those_of_the_machine_now() {
    let fixture = Fixture::new();
    let scrape = || {
        let response = fixture.get("/metrics");
        assert_eq!(response.status, 200);
        assert_eq!(
            response.header("content-type"),
            Some("text/plain; version=0.0.4; charset=utf-8")
        );
        response.body
    };
    let has = |text: &str, line: &str| text.lines().any(|found| found == line);
    assert!(!scrape().contains("siding_pinned_bytes"));

    fixture.ready();
    fixture.write("proc/self/status", "VmPin:\t    2048 kB\n");
    let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
    for (count, value) in [
        ("nr", "8\n"),
        ("free", "7\n"),
        ("resv", "0\n"),
        ("surplus", "0\n"),
        ("nr_overcommit", "0\n"),
    ] {
        fixture.write(&format!("{pool}/{count}_hugepages"), value);
    }
    fixture
        .board
        .metrics()
        .registration("io_uring", "ring", "host", "ok", 0.5);
    let text = scrape();
    for line in [
        "siding_pinned_bytes 2097152",
        "siding_ready 1",
        "siding_registration_cap 6",
        r#"siding_hugepages_free{node="unknown",page="2Mi"} 7"#,
        r#"siding_segment_bytes{page="2Mi",segment="kv"} 4294967296"#,
        r#"siding_segment_phase_seconds{phase="touch",segment="kv"} 2"#,
        r#"siding_registration_seconds_count{backend="io_uring",memory="host",nic="ring",outcome="ok"} 1"#,
    ] {
        assert!(has(&text, line), "{line} in {text}");
    }

    fixture.write(&format!("{pool}/free_hugepages"), "0\n");
    fixture
        .board
        .update(|status| drop(status.segments.remove(0)));
    let text = scrape();
    assert!(
        has(
            &text,
            r#"siding_hugepages_free{node="unknown",page="2Mi"} 0"#
        ),
        "{text}"
    );
    assert!(!text.contains("\"kv\""), "{text}");
}

const PATHS: [&str; 8] = [
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/readyz",
    "/startupz",
    "/v1/segments",
    "/v1/segments/{name}",
    "/v1/status",
];

#[test]
fn the_document_lists_the_routes() {
    let fixture = Fixture::new();
    let document = good(&fixture.get("/openapi.json"));
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["title"], "Siding");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let paths = document["paths"].as_object().unwrap();
    let mut names: Vec<_> = paths.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, PATHS);
    for (path, item) in paths {
        let methods: Vec<_> = item.as_object().unwrap().keys().collect();
        assert_eq!(methods, ["get"], "{path}");
        let operation = &item["get"];
        assert!(operation["summary"].is_string(), "{path}");
        for (code, response) in operation["responses"].as_object().unwrap() {
            assert!(response["description"].is_string(), "{path} {code}");
            let content = response["content"].as_object().unwrap();
            let problem = content.contains_key("application/problem+json");
            assert_eq!(problem, code != "200", "{path} {code}");
        }
    }
    assert_eq!(fixture.get("/v1/segments/kv").status, 200);
    for path in PATHS.iter().filter(|path| !path.contains('{')) {
        let response = fixture.get(path);
        let code = response.status.to_string();
        let described = &document["paths"][path]["get"]["responses"][&code]["content"];
        let kind = response.header("content-type").unwrap();
        let kind = kind.split(';').next().unwrap();
        assert!(described.get(kind).is_some(), "{path} {code} {kind}");
    }
}

/// Everything that the document refers to is in it, and everything in it is described.
#[test]
fn the_document_is_whole() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(
                    fields
                        .get("$ref")
                        .and_then(Value::as_str)
                        .map(str::to_owned),
                );
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    let fixture = Fixture::new();
    let document = good(&fixture.get("/openapi.json"));
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for name in [
        "Status",
        "SegmentStatus",
        "RegistrationStatus",
        "Problem",
        "Probe",
    ] {
        assert!(schemas.contains_key(name), "{name} in {:?}", schemas.keys());
    }
    for (name, schema) in schemas {
        assert!(schema["description"].is_string(), "{name}");
    }
}

#[test]
fn other_paths_methods_and_forms() {
    let fixture = Fixture::new();
    for path in [
        "/",
        "/metrics/",
        "/v1",
        "/v1/segments/",
        "/v1/segments/a/b",
        "//metrics",
    ] {
        let response = fixture.get(path);
        let detail = problem(&response, 404, "Not Found", "unknownPath");
        assert_eq!(
            detail,
            format!("there is no {path}; the paths are: {}", PATHS.join(", "))
        );
        assert_eq!(response.json()["available"], json!(PATHS));
    }
    for path in PATHS.map(|path| path.replace("{name}", "kv")) {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
            let response = ask(fixture.server.address, method, &path);
            let detail = problem(&response, 405, "Method Not Allowed", "wrongMethod");
            assert_eq!(
                detail,
                format!("{path} does not take {method}; everything here is read with GET or HEAD")
            );
            assert_eq!(
                response.header("allow"),
                Some("GET,HEAD"),
                "{method} {path}"
            );
        }
        let (head, full) = (
            ask(fixture.server.address, "HEAD", &path),
            fixture.get(&path),
        );
        assert_eq!(head.status, full.status, "{path}");
        assert_eq!(head.body, "", "{path}");
        for header in ["content-type", "content-length"] {
            assert_eq!(head.header(header), full.header(header), "{path} {header}");
        }
        assert_eq!(
            fixture.get(&format!("{path}?any=thing")).status,
            full.status
        );
    }
}

mod of_the_agent {
    use siding_crds::plan::NodePlan;

    use super::*;
    use crate::http::agent_router;
    use crate::node_plan::{Known, Planning};
    use siding_fixtures::http::request;

    const PLAN: &str = r#"{"version":1,"source":"Node","node":"n1","cap":22,"capReason":"0.9 x 192 / 8",
        "ranks":8,"cores":192,"rails":[
        {"gpu":"0000:53:00.0","uuid":"GPU-aa","nics":["n0","n1"],"evidence":"SameSwitch"},
        {"gpu":"0000:64:00.0","nics":["n1","n2"],"evidence":"SameRoot"}]}"#;

    fn start(plan: Option<&str>) -> Server {
        let board = Board::new([("kv", 4096)], Metrics::new());
        let known = Known {
            plan: plan.map(|text| NodePlan::parse(text).unwrap()),
            ..Known::default()
        };
        let planning = Planning::new(known, board.clone(), None);
        let routes = agent_router(board, Root::at("/nowhere"), planning);
        Server::start(|listener, until| serve(listener, routes, until))
    }

    fn put(server: &Server, body: &str) -> Response {
        let length = body.len();
        let text = format!(
            "PUT /v1/gpus HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        request(server.address, &text)
    }

    #[test]
    fn rails_are_narrowed_to_the_gpus_that_it_tells() {
        let server = start(Some(PLAN));
        let plan = || good(&get(server.address, "/v1/status"))["plan"].clone();
        assert_eq!(plan()["gpus"], Value::Null);
        assert_eq!(plan()["nics"], json!(["n0", "n1", "n2"]));
        let told = good(&put(&server, r#"{"gpus":["0000:64:00.0","nvidia7"]}"#));
        assert_eq!(told, plan());
        assert_eq!(
            told,
            json!({
                "source": "Node", "node": "n1", "cap": 22, "capReason": "0.9 x 192 / 8",
                "ranks": 8, "cores": 192, "gpus": ["0000:64:00.0", "nvidia7"],
                "rails": [{"gpu": "0000:64:00.0", "uuid": null, "nics": ["n1", "n2"], "evidence": "SameRoot"}],
                "nics": ["n1", "n2"],
                "findings": ["GPU nvidia7 of the pod is not in the node's table"],
            })
        );
    }

    #[test]
    fn what_can_not_be_taken_changes_nothing() {
        let server = start(None);
        let many = format!(r#"{{"gpus":[{}"x"]}}"#, r#""x","#.repeat(256));
        let long = format!(r#"{{"gpus":["{}"]}}"#, "x".repeat(201));
        let large = format!(r#"{{"gpus":["{}"]}}"#, "x".repeat(65 << 10));
        for body in [
            "",
            "[]",
            r#"{"gpus":[1]}"#,
            r#"{"cpus":[]}"#,
            &many,
            &long,
            &large,
        ] {
            let answer = put(&server, body);
            problem(&answer, 400, "Bad Request", "invalidBody");
        }
        let plan = &good(&get(server.address, "/v1/status"))["plan"];
        assert_eq!([&plan["gpus"], &plan["source"]], [&Value::Null; 2]);
        let detail = problem(
            &ask(server.address, "GET", "/v1/gpus"),
            405,
            "Method Not Allowed",
            "wrongMethod",
        );
        assert_eq!(detail, "/v1/gpus does not take GET; it takes PUT");
    }

    #[test]
    fn it_is_documented_there_and_is_nowhere_else() {
        let server = start(None);
        let document = good(&get(server.address, "/openapi.json"));
        assert!(document["paths"]["/v1/gpus"]["put"]["requestBody"].is_object());
        let fixture = Fixture::new();
        let document = good(&fixture.get("/openapi.json"));
        assert!(document["paths"]["/v1/gpus"].is_null());
        assert_eq!(fixture.get("/v1/gpus").status, 404);
    }
}

//! The sidecar's configuration, as `siding run` reads it.

use serde::Serialize;
use siding_crds::api::{AutoOr, Backend, NumaPolicy, OnFailure, Order};
use siding_crds::names::{STORAGE_DIRECTORY, huge_pages_directory};
use siding_crds::plan::Injection;
use siding_crds::reasons::Skip;
use siding_crds::{format_bytes, quoted};

use super::skip::Skipped;
use super::wish::{Segment, Wish};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Config<'a> {
    segments: Vec<ConfigSegment<'a>>,
    storage: Storage,
    registration: Registration,
    listen: Listen,
    logging: Logging,
    on_failure: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigSegment<'a> {
    name: &'a str,
    size: String,
    page: &'static str,
    numa: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
}

#[derive(Serialize)]
struct Storage {
    directory: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Registration {
    backend: &'static str,
    cap: String,
    order: &'static str,
    touch_threads: String,
}

#[derive(Serialize)]
struct Listen {
    http: String,
}

#[derive(Serialize)]
struct Logging {
    format: &'static str,
}

/// The configuration in YAML.
///
/// It listens on `[::]`, which takes both families (as long as the kernel's `bindv6only` is 0, its default),
/// or the one that there is: which one the cluster's probes come by is not known here.
pub(super) fn config(wish: &Wish<'_>, injection: &Injection, port: u16) -> Result<String, Skipped> {
    let registration = &wish.spec.registration;
    let config = Config {
        segments: wish.segments.iter().map(segment).collect(),
        storage: Storage {
            directory: STORAGE_DIRECTORY,
        },
        registration: Registration {
            backend: match registration.backend {
                Backend::Auto => "auto",
                Backend::IoUring => "io_uring",
                Backend::None => "none",
            },
            cap: injection
                .cap
                .map_or_else(|| "auto".to_owned(), |cap| cap.to_string()),
            order: match registration.order {
                Order::Ascending => "ascending",
                Order::Declared => "declared",
            },
            touch_threads: auto_or(registration.touch_threads),
        },
        listen: Listen {
            http: format!("[::]:{port}"),
        },
        logging: Logging { format: "json" },
        // A sidecar that ends with an error is started again, and the engine waits for it to stay.
        on_failure: match wish.spec.on_failure {
            OnFailure::Degrade => "serve",
            OnFailure::Block => "exit",
        },
    };
    serde_saphyr::to_string(&config).map_err(|error| {
        let message = format!(
            "StorePool {}: its configuration can't be written: {error}",
            quoted(wish.pool)
        );
        Skipped::new(Skip::InvalidPool, message)
    })
}

fn segment<'a>(segment: &Segment<'a>) -> ConfigSegment<'a> {
    let page = segment.spec.page_size;
    ConfigSegment {
        name: &segment.spec.name,
        size: format_bytes(segment.bytes),
        page: page.as_str(),
        numa: match segment.spec.numa {
            NumaPolicy::Local => "local",
            NumaPolicy::Interleave => "interleave",
        },
        directory: page.is_huge().then(|| huge_pages_directory(page.as_str())),
    }
}

fn auto_or(value: AutoOr) -> String {
    value
        .number()
        .map_or_else(|| "auto".to_owned(), |number| number.to_string())
}

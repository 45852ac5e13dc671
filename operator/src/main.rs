//! Siding's operator: `siding-operator --help` tells.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use kube::Client;
use siding_operator::admission::{Defaults, Level};
use siding_operator::caches::Caches;
use siding_operator::certificates::keeper::{Keeper, Source};
use siding_operator::certificates::serving::InUse;
use siding_operator::controllers::Controllers;
use siding_operator::controllers::tell::Teller;
use siding_operator::leader::Candidate;
use siding_operator::live::{ApiServer, Live};
use siding_operator::metrics::Metrics;
use siding_operator::server::{Health, Webhooks, health_router, router, serve_tls};
use siding_service::http::serve;
use siding_topology::catalogue::Catalogue;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

/// Webhooks and controllers of Siding.
///
/// It runs in a pod of the cluster, as the chart installs it; outside of one it takes the kubeconfig
/// of kubectl. Every replica answers webhooks, the one that holds the Lease runs the controllers.
#[derive(Debug, Parser)]
#[command(name = "siding-operator", version)]
struct Arguments {
    /// Where the webhooks are served (HTTPS)
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:9443")]
    webhooks: SocketAddr,

    /// Where metrics and health are served (HTTP)
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:9602")]
    listen: SocketAddr,

    /// The operator's namespace: its Lease and its Secret are there
    #[arg(long, value_name = "NAMESPACE")]
    namespace: String,

    /// This replica's name, of no other one: its pod's
    #[arg(long, value_name = "NAME")]
    identity: String,

    /// The sidecar's image where a pool names none
    #[arg(long, value_name = "IMAGE")]
    sidecar_image: String,

    /// The PodSecurity level that the API server enforces where a namespace has no label
    #[arg(long, value_enum, default_value_t = Level::Privileged)]
    pod_security: Level,

    /// The Service that the API server calls the webhooks by
    #[arg(long, value_name = "NAME", default_value = "siding-operator")]
    service: String,

    /// The Secret of the webhooks' certificate
    #[arg(
        long,
        value_name = "NAME",
        default_value = "siding-webhook-certificate"
    )]
    secret: String,

    /// Who makes the webhooks' certificate
    #[arg(long, value_enum, default_value_t = Source::Own)]
    certificates: Source,

    /// The MutatingWebhookConfiguration whose caBundle is kept right
    #[arg(long, value_name = "NAME", default_value = "siding")]
    webhook_configuration: String,

    /// The Lease that elects the replica of the controllers
    #[arg(long, value_name = "NAME", default_value = "siding-operator")]
    lease: String,

    /// Log lines for people instead of JSON
    #[arg(long)]
    text_log: bool,

    /// Which log lines: error, warn, info, debug, trace, or directives
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(problem) = start_log(&arguments) {
        eprintln!(
            "siding-operator: --log-level {}: {problem}",
            arguments.log_level
        );
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(run(arguments)),
        Err(problem) => Err(problem.into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            error!(error = %problem, "the operator ends");
            ExitCode::FAILURE
        }
    }
}

fn start_log(arguments: &Arguments) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = EnvFilter::try_new(&arguments.log_level)?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if arguments.text_log {
        log.init();
    } else {
        log.json().flatten_event(true).init();
    }
    Ok(())
}

/// The API server finds a replica that goes until the Service has forgotten it on every node: as long, webhooks
/// are answered.
const LINGER: Duration = Duration::from_secs(5);

type Problem = Box<dyn std::error::Error + Send + Sync>;

async fn run(arguments: Arguments) -> Result<(), Problem> {
    let (stop, stopped) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    let client = Client::try_default().await?;
    let metrics = Metrics::new()?;
    let caches = Arc::new(Caches::default());
    let catalogue = Arc::new(Catalogue::published());
    let in_use = Arc::new(InUse::default());
    let webhooks = TcpListener::from_std(siding_service::listen(arguments.webhooks)?)?;
    let plain = TcpListener::from_std(siding_service::listen(arguments.listen)?)?;
    info!(webhooks = %webhooks.local_addr()?, listen = %plain.local_addr()?, "the operator starts");

    let follow = tokio::spawn(caches.clone().follow(client.clone()));
    let keep = tokio::spawn(keeper(&arguments, &client, &in_use, &metrics).keep());
    let (leads, led) = watch::channel(false);
    let resign = Arc::new(AtomicBool::new(false));
    let candidate = Candidate {
        client: client.clone(),
        namespace: arguments.namespace.clone(),
        lease: arguments.lease.clone(),
        identity: arguments.identity.clone(),
    };
    let stand = tokio::spawn(candidate.stand(leads, resign.clone()));
    let defaults = Arc::new(Defaults {
        pod_security: arguments.pod_security,
        ..Defaults::new(arguments.sidecar_image)
    });
    let live = Arc::new(Live::new(Arc::new(ApiServer(client.clone()))));
    let controllers = Controllers {
        teller: Arc::new(Teller::new(client.clone(), &arguments.identity)),
        client,
        caches: caches.clone(),
        catalogue: catalogue.clone(),
        defaults: defaults.clone(),
        metrics: metrics.clone(),
    };
    let control = tokio::spawn(controllers.run(led));

    let until = |mut stopped: watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let health = Health {
        caches: caches.clone(),
        in_use: in_use.clone(),
        metrics: metrics.clone(),
    };
    let hooks = router(Webhooks {
        caches,
        live,
        catalogue,
        defaults,
        metrics,
    });
    let tls = tokio::spawn(serve_tls(webhooks, hooks, in_use, until(stopped.clone())));
    let http = tokio::spawn(serve(plain, health_router(health), until(stopped)));

    let lingers = tokio::select! {
        _ = terminate.recv() => {
            info!("SIGTERM: the operator stops");
            true
        }
        _ = interrupt.recv() => {
            info!("SIGINT: the operator stops");
            false
        }
    };
    // The controllers first, so that another replica takes over while the last requests are answered.
    resign.store(true, Ordering::Relaxed);
    let until = Instant::now() + LINGER;
    let _ = tokio::join!(stand, control);
    if lingers {
        sleep_until(until).await;
    }
    stop.send_replace(true);
    tls.await??;
    http.await??;
    keep.abort();
    follow.abort();
    Ok(())
}

fn keeper(
    arguments: &Arguments,
    client: &Client,
    in_use: &Arc<InUse>,
    metrics: &Metrics,
) -> Keeper {
    let service = format!("{}.{}.svc", arguments.service, arguments.namespace);
    Keeper {
        client: client.clone(),
        source: arguments.certificates,
        namespace: arguments.namespace.clone(),
        secret: arguments.secret.clone(),
        names: vec![service],
        webhooks: vec![arguments.webhook_configuration.clone()],
        in_use: in_use.clone(),
        metrics: metrics.clone(),
    }
}

//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::logging::{LogFormat, LogLevel};

const LONG: &str = "\
Runs on each node, as a DaemonSet. It

  reads what the node has (/sys, /proc) and publishes it as a NodeTopology of the node's name,
  finds the socket of each sidecar on the node below the kubelet's pod directories,
  tells each sidecar which GPUs its pod got (the kubelet's pod-resources socket),
  and relays what each sidecar did to the status of its StoreMount.

It writes its own node's objects only. Without it pods run all the same: with the cap that the
node's capacity and the catalogue give.";

const AFTER: &str = "\
In a DaemonSet:
  env NODE_NAME from fieldRef spec.nodeName
  hostPath /sys and /proc at /host/sys and /host/proc, read-only
  hostPath /var/lib/kubelet/pods and /var/lib/kubelet/pod-resources, read-only
  runAsUser 0 (sockets of pods are open to their owner and to root)

Needs by RBAC: nodes get; nodetopologies create, patch; nodetopologies/status patch;
storemounts list, watch; storemounts/status patch.

Exit codes: 0 asked to stop (SIGTERM, SIGINT); 1 it can't run (the message says what mends it);
2 the command line is wrong.";

/// Publishes what a node has, and relays what its sidecars did.
#[derive(Debug, Clone, Parser)]
#[command(name = "siding-agent", version, about, long_about = LONG, after_long_help = AFTER)]
pub struct Options {
    /// The node [default: $NODE_NAME, as the downward API sets it]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Where the node's /sys and /proc are mounted
    #[arg(long, value_name = "DIR", default_value = "/host")]
    pub host_root: PathBuf,
    /// The kubelet's directory: sockets of sidecars are below its pods/
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_directory: PathBuf,
    /// The socket by which the kubelet tells which devices a pod got
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock"
    )]
    pub pod_resources_socket: PathBuf,
    /// Seconds between two looks at the node; a NIC that is lost shows after so long at most
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds)]
    pub interval: Duration,
    /// Seconds between two looks at each sidecar
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub sidecar_interval: Duration,
    /// Where metrics and probes are served: an IP address and a port
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:9601")]
    pub listen: SocketAddr,
    /// Count software devices (rdma_rxe, siw) as usable
    #[arg(long)]
    pub allow_soft_rdma: bool,
    /// Log lines as JSON or text; auto is text at a terminal
    #[arg(long, value_enum, default_value = "auto")]
    pub log_format: LogFormat,
    /// Which log lines
    #[arg(long, value_enum, default_value = "info")]
    pub log_level: LogLevel,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a number of seconds from 0.1 to 3600");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
        for (text, good) in [
            ("20", true),
            ("0.5", true),
            ("0", false),
            ("-1", false),
            ("x", false),
            ("NaN", false),
        ] {
            assert_eq!(seconds(text).is_ok(), good, "{text}");
        }
    }
}

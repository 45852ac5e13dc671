//! Which devices the kubelet gave to which pod: its pod-resources service, version 1.
//!
//! The messages are those of `k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`, the fields that
//! are read here; a protobuf reader skips the others.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// The longest that the kubelet may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest answer: what the kubelet's own clients take.
const MOST_BYTES: usize = 16 << 20;
const LIST: &str = "/v1.PodResourcesLister/List";

/// `ListPodResourcesRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct ListPodResourcesRequest {}

/// `ListPodResourcesResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ListPodResourcesResponse {
    /// The pods of the node.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// `PodResources`.
#[derive(Clone, PartialEq, Message)]
pub struct PodResources {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// `ContainerResources`.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerResources {
    /// The container's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What device plugins gave it.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// What it got by resource claims.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

/// `ContainerDevices`.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerDevices {
    /// The extended resource.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// Ids of its devices, as the plugin calls them.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

/// `DynamicResource`.
#[derive(Clone, PartialEq, Message)]
pub struct DynamicResource {
    /// The claim.
    #[prost(string, tag = "2")]
    pub claim_name: String,
    /// What was allocated for it.
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

/// `ClaimResource`.
#[derive(Clone, PartialEq, Message)]
pub struct ClaimResource {
    /// The driver.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// The device in its pool.
    #[prost(string, tag = "4")]
    pub device_name: String,
}

/// Why the kubelet gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoResources {
    /// Its socket can't be reached.
    #[error("{path}: {source}", path = path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: tonic::transport::Error,
    },
    /// It refused.
    #[error("the kubelet answered {code}: {message}")]
    Refused {
        /// The code of gRPC.
        code: tonic::Code,
        /// The message.
        message: String,
    },
}

impl From<tonic::Status> for NoResources {
    fn from(status: tonic::Status) -> Self {
        Self::Refused {
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}

/// The GPUs of each pod, by namespace and name.
pub type GpusOfPods = BTreeMap<(String, String), Vec<String>>;

/// Asks the kubelet.
///
/// # Errors
/// [`NoResources`].
pub async fn list(socket: &Path) -> Result<ListPodResourcesResponse, NoResources> {
    let channel = connect(socket)
        .await
        .map_err(|source| NoResources::Connect {
            path: socket.to_owned(),
            source,
        })?;
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MOST_BYTES);
    grpc.ready()
        .await
        .map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec: ProstCodec<ListPodResourcesRequest, ListPodResourcesResponse> =
        ProstCodec::default();
    let request = tonic::Request::new(ListPodResourcesRequest {});
    let answer = grpc
        .unary(request, PathAndQuery::from_static(LIST), codec)
        .await?;
    Ok(answer.into_inner())
}

async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let path = socket.to_owned();
    let connector = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    // The address is the connector's affair; gRPC wants one for its headers.
    Endpoint::from_static("http://localhost")
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE)
        .connect_with_connector(connector)
        .await
}

/// The GPUs of each pod, each once, as the kubelet names them: UUIDs, PCI addresses or other ids.
#[must_use]
pub fn gpus_of_pods(response: &ListPodResourcesResponse) -> GpusOfPods {
    let pods = response.pod_resources.iter();
    pods.map(|pod| {
        let key = (pod.namespace.clone(), pod.name.clone());
        (key, gpus_of(pod))
    })
    .collect()
}

fn gpus_of(pod: &PodResources) -> Vec<String> {
    let mut gpus: Vec<String> = Vec::new();
    for container in &pod.containers {
        let devices = container.devices.iter();
        let by_plugin = devices
            .filter(|devices| is_gpu_resource(&devices.resource_name))
            .flat_map(|devices| &devices.device_ids);
        let claims = container.dynamic_resources.iter();
        let by_claim = claims
            .flat_map(|claim| &claim.claim_resources)
            .filter(|resource| resource.driver_name.contains("gpu"))
            .map(|resource| &resource.device_name);
        for id in by_plugin.chain(by_claim) {
            // A GPU that is shared in time has a number of the share behind its id.
            let id = id.split("::").next().unwrap_or_default();
            if !id.is_empty() && !gpus.iter().any(|known| known == id) {
                gpus.push(id.to_owned());
            }
        }
    }
    gpus
}

/// `nvidia.com/gpu`, `nvidia.com/gpu.shared`, `nvidia.com/mig-1g.5gb`, `amd.com/gpu` and the like.
fn is_gpu_resource(name: &str) -> bool {
    let device = name.rsplit('/').next().unwrap_or_default();
    device == "gpu" || device.starts_with("gpu.") || device.starts_with("mig-")
}

#[cfg(test)]
#[path = "pod_resources_tests.rs"]
mod tests;

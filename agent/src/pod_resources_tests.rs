use std::convert::Infallible;
use std::pin::Pin;

use tempfile::TempDir;
use tonic::body::Body;
use tonic::server::{Grpc as Server, UnaryService};
use tower::Service;

use super::*;

fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
    ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

fn response() -> ListPodResourcesResponse {
    let container = |devices, claims: &[(&str, &str)]| ContainerResources {
        name: "engine".to_owned(),
        devices,
        dynamic_resources: vec![DynamicResource {
            claim_name: "claim".to_owned(),
            claim_resources: claims
                .iter()
                .map(|(driver, device)| ClaimResource {
                    driver_name: (*driver).to_owned(),
                    device_name: (*device).to_owned(),
                })
                .collect(),
        }],
    };
    let pod = |name: &str, containers| PodResources {
        name: name.to_owned(),
        namespace: "models".to_owned(),
        containers,
    };
    ListPodResourcesResponse {
        pod_resources: vec![
            pod(
                "vllm-0",
                vec![
                    container(
                        vec![
                            devices("nvidia.com/gpu", &["GPU-bb", "GPU-aa"]),
                            devices("vpc.amazonaws.com/efa", &["rdmap79s0"]),
                            devices("hugepages-2Mi", &["1"]),
                        ],
                        &[],
                    ),
                    container(vec![devices("nvidia.com/gpu", &["GPU-aa"])], &[]),
                ],
            ),
            pod(
                "shared",
                vec![container(
                    vec![
                        devices("nvidia.com/gpu.shared", &["GPU-cc::0", "GPU-cc::1"]),
                        devices("nvidia.com/mig-1g.5gb", &["MIG-1"]),
                    ],
                    &[],
                )],
            ),
            pod(
                "claims",
                vec![container(
                    Vec::new(),
                    &[("gpu.nvidia.com", "gpu-0"), ("dra.net", "eth0")],
                )],
            ),
            pod("plain", vec![container(Vec::new(), &[])]),
        ],
    }
}

#[test]
fn gpus_of_each_pod() {
    let gpus = gpus_of_pods(&response());
    for (pod, wanted) in [
        ("vllm-0", vec!["GPU-bb", "GPU-aa"]),
        ("shared", vec!["GPU-cc", "MIG-1"]),
        ("claims", vec!["gpu-0"]),
        ("plain", vec![]),
    ] {
        assert_eq!(
            gpus[&("models".to_owned(), pod.to_owned())],
            wanted,
            "{pod}"
        );
    }
    assert_eq!(gpus.len(), 4);
}

/// The kubelet's service, as equipment.
#[derive(Clone)]
struct Kubelet;

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl UnaryService<ListPodResourcesRequest> for Kubelet {
    type Response = ListPodResourcesResponse;
    type Future = Answer<tonic::Response<Self::Response>, tonic::Status>;

    fn call(&mut self, _: tonic::Request<ListPodResourcesRequest>) -> Self::Future {
        Box::pin(async { Ok(tonic::Response::new(response())) })
    }
}

impl Service<hyper::Request<hyper::body::Incoming>> for Kubelet {
    type Response = hyper::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Self::Response, Infallible>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: hyper::Request<hyper::body::Incoming>) -> Self::Future {
        Box::pin(async move {
            if request.uri().path() != LIST {
                return Ok(tonic::Status::unimplemented("no such call").into_http());
            }
            let codec: ProstCodec<ListPodResourcesResponse, ListPodResourcesRequest> =
                ProstCodec::default();
            Ok(Server::new(codec).unary(Self, request).await)
        })
    }
}

#[test]
fn the_kubelet_is_asked_over_its_socket() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubelet.sock");
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let error = list(&path).await.unwrap_err();
        assert!(error.to_string().contains("kubelet.sock"), "{error}");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = hyper_util::service::TowerToHyperService::new(Kubelet);
                let http =
                    hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        assert_eq!(list(&path).await.unwrap(), response());
    });
}

/// Bytes as the kubelet sends them: a message with fields that are not read here.
#[test]
fn fields_that_are_not_read_are_skipped() {
    // pod_resources { name: "p" namespace: "n" containers { name: "c" cpu_ids: 1
    //   devices { resource_name: "nvidia.com/gpu" device_ids: "GPU-a" topology {} } } }
    let devices = [b"\x0a\x0envidia.com/gpu\x12\x05GPU-a\x1a\x00".as_slice()].concat();
    let mut container = b"\x0a\x01c\x18\x01\x12".to_vec();
    container.push(u8::try_from(devices.len()).unwrap());
    container.extend(&devices);
    let mut pod = b"\x0a\x01p\x12\x01n\x1a".to_vec();
    pod.push(u8::try_from(container.len()).unwrap());
    pod.extend(&container);
    let mut bytes = b"\x0a".to_vec();
    bytes.push(u8::try_from(pod.len()).unwrap());
    bytes.extend(&pod);
    let response = ListPodResourcesResponse::decode(bytes.as_slice()).unwrap();
    let gpus = gpus_of_pods(&response);
    assert_eq!(gpus[&("n".to_owned(), "p".to_owned())], ["GPU-a"]);
}

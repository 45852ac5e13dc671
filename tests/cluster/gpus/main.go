// Equipment of the tests: a device plugin that offers GPUs which are not there to the kubelet of the
// tests' cluster, so that a real kubelet divides them among pods and tells of it by its own
// pod-resources socket. A container that gets some finds their ids in NVIDIA_VISIBLE_DEVICES.
//
//	gpus ID...
//
// Runs until it is killed.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const resource = "nvidia.com/gpu"

type plugin struct {
	api.UnimplementedDevicePluginServer
	ids []string
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	var devices []*api.Device
	for _, id := range p.ids {
		devices = append(devices, &api.Device{ID: id, Health: api.Healthy})
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		ids := strings.Join(container.DevicesIds, ",")
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": ids},
		})
	}
	return answer, nil
}

func (p *plugin) run() error {
	endpoint := "siding-gpus.sock"
	path := filepath.Join(api.DevicePluginPath, endpoint)
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	kubelet, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	_, err = api.NewRegistrationClient(kubelet).Register(context.Background(), &api.RegisterRequest{
		Version: api.Version, Endpoint: endpoint, ResourceName: resource,
	})
	if err != nil {
		return err
	}
	return <-served
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: gpus ID...")
	}
	log.Fatal((&plugin{ids: os.Args[1:]}).run())
}

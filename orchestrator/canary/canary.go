// Package canary creates a pod sandbox and removes it, which proves that this machine can run pods.
// It calls containerd over CRI, as the kubelet does, so the test includes runc, the pause image,
// control groups and the pod network. It needs no API server, starts no container in the sandbox,
// and never touches the sandboxes of pods.
package canary

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/orlop-os/orlop/orchestrator/dirs"
)

// Namespace is the namespace of the sandbox. The API server has no such namespace.
const Namespace = "orlop-canary"

// uid is the UID of the canary. No pod has it, because the UIDs of pods have the form of RFC 9562.
const uid = "orlop-canary"

// group is the kubelet's control group of all pods.
const group = "/kubepods"

// Run creates the sandbox, checks that it has an address, and removes it.
func Run(ctx context.Context, dirs dirs.Dirs) (err error) {
	conn, err := grpc.NewClient("unix://"+dirs.ContainerdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("containerd: %w", err)
	}
	defer conn.Close()
	runtime := cri.NewRuntimeServiceClient(conn)
	if err := remove(ctx, runtime); err != nil { // the sandbox of an interrupted run
		return err
	}
	made, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "canary", Namespace: Namespace, Uid: uid},
		Hostname: "canary",
		Labels:   map[string]string{label: "true"},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: group,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_POD, Ipc: cri.NamespaceMode_POD},
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			},
		},
	}})
	if err != nil {
		return fmt.Errorf("containerd: cannot create a pod sandbox: %w", err)
	}
	defer func() { err = errors.Join(err, remove(context.WithoutCancel(ctx), runtime)) }()
	now, err := runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: made.PodSandboxId})
	switch {
	case err != nil:
		return fmt.Errorf("containerd: cannot read the status of the created sandbox: %w", err)
	case now.Status.GetState() != cri.PodSandboxState_SANDBOX_READY:
		return fmt.Errorf("containerd: the created sandbox is %s", now.Status.GetState())
	case now.Status.GetNetwork().GetIp() == "":
		return errors.New("pod network: the sandbox has no address")
	}
	return nil
}

// label marks the sandbox.
const label = "orlop.dev/canary"

// remove removes every sandbox of a canary. A pod can have the label, too, but no pod has the UID.
func remove(ctx context.Context, runtime cri.RuntimeServiceClient) error {
	all, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{label: "true"}}})
	if err != nil {
		return fmt.Errorf("containerd: cannot list sandboxes: %w", err)
	}
	for _, s := range all.Items {
		if s.Metadata.GetUid() != uid {
			continue
		}
		if _, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id}); err != nil {
			return fmt.Errorf("containerd: cannot stop the canary's sandbox: %w", err)
		}
		if _, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil {
			return fmt.Errorf("containerd: cannot remove the canary's sandbox: %w", err)
		}
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/orlop-os/orlop/imager/ociarchive"
	"github.com/orlop-os/orlop/test/localcluster"
)

// The registry runs as a mirror of registry.k8s.io. It is necessary because some tests pull an
// image with the pull policy Always, even though the machine has the image.
const (
	mirrorImage = "test.orlop.dev/registry:1"
	mirrorPort  = 5000
)

// isPulled reports whether the registry has to serve the image with this name.
func isPulled(name string) bool { return strings.Contains(name, "/kitten:") }

// mirror returns the image of a registry that serves the given images. The parameter program is the
// path of the registry's executable.
func mirror(program string, images ...ociarchive.Image) (ociarchive.Image, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return ociarchive.Image{}, fmt.Errorf("mirror: %w", err)
	}
	dir, err := os.MkdirTemp("", "orlop-mirror-")
	if err != nil {
		return ociarchive.Image{}, fmt.Errorf("mirror: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := ociarchive.WriteLayout(dir, images...); err != nil {
		return ociarchive.Image{}, err
	}
	layer := ociarchive.Layer{"/registry": {Mode: 0o755, Content: content}}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		layer["/layout"+strings.TrimPrefix(path, dir)] = ociarchive.File{Mode: 0o644, Content: content}
		return err
	})
	if err != nil {
		return ociarchive.Image{}, fmt.Errorf("mirror: %w", err)
	}
	return ociarchive.Image{
		Name: mirrorImage, Layers: []ociarchive.Layer{layer},
		Config: v1.Config{Entrypoint: []string{"/registry", "/layout", ":" + strconv.Itoa(mirrorPort)}},
	}, nil
}

// mirrorPod runs the registry in the network namespace of a machine. The arguments are the names of
// the machine and of the image.
const mirrorPod = `apiVersion: v1
kind: Pod
metadata: {name: registry, namespace: kube-system}
spec:
  nodeName: %s
  hostNetwork: true
  tolerations: [{operator: Exists}]
  containers: [{name: registry, image: %s, imagePullPolicy: Never}]
`

// startMirror runs the registry on the first machine and waits until it is Ready. It configures the
// registry as a mirror on all machines.
func startMirror(ctx context.Context, c localcluster.Cluster, kubectl string) error {
	power, err := c.Power()
	if err != nil {
		return err
	}
	status, err := power.Status(ctx)
	if err != nil {
		return err
	}
	first := status.Machines[0]
	patch := filepath.Join(c.Dir, "machine.yaml")
	// Tests of network policies use SCTP in pods, and need the kernel module.
	spec := fmt.Sprintf("kind: Machine\nspec: {kernelModules: [sctp], registries: [{address: \"%s:%d\", mirrors: [registry.k8s.io], plainHTTP: true}]}\n", first.Addr, mirrorPort)
	if err := os.WriteFile(patch, []byte(spec), 0o600); err != nil {
		return fmt.Errorf("mirror: cannot write the patch: %w", err)
	}
	for _, name := range c.Machines() {
		if err := c.Orlopctl(ctx, "--context", name, "patch-config", "-f", patch); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"apply", "-f", "-"}, {"wait", "--namespace=kube-system", "--for=condition=Ready", "pod/registry", "--timeout=3m"}} {
		run := exec.CommandContext(ctx, kubectl, append([]string{"--kubeconfig=" + c.Kubeconfig()}, args...)...)
		run.Stdin = strings.NewReader(fmt.Sprintf(mirrorPod, first.Name, mirrorImage))
		if out, err := run.CombinedOutput(); err != nil {
			return fmt.Errorf("mirror: kubectl %s: %w: %s", args[0], err, out)
		}
	}
	return nil
}

package bootfiles

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/orlop-os/orlop/imager/ociarchive"
	"github.com/orlop-os/orlop/imager/pause"
)

// build describes one call of `go build`.
type build struct {
	module   string // directory
	out      string // directory of the programs, below the root of the guest
	tags     string
	ldflags  string // in addition to -s -w
	cgo      bool
	packages []string
}

// builds returns all calls of `go build`. The programs have the same build flags as in the image
// (imager/programs.go). The parameter kubernetes is the version that the Kubernetes programs
// report.
func builds(s Spec, kubernetes string) []build {
	const containerd, plugins = "github.com/containerd/containerd/v2/cmd/", "github.com/containernetworking/plugins/plugins/"
	version := "-X k8s.io/component-base/version.gitVersion=" + kubernetes + " -X k8s.io/client-go/pkg/version.gitVersion=" + kubernetes
	return []build{
		{module: s.Module, out: "bin", tags: "providerless", ldflags: version, packages: []string{"./hyper", "./waiter", "k8s.io/kubernetes/cmd/kubectl"}},
		{module: s.Components, out: "bin", tags: "no_btrfs,no_zfs,no_aufs,no_devmapper",
			packages: []string{containerd + "containerd", containerd + "containerd-shim-runc-v2", containerd + "ctr"}},
		{module: s.Components, out: "bin", tags: "seccomp,netgo,osusergo", ldflags: "-extldflags -static", cgo: true, packages: []string{"github.com/opencontainers/runc"}},
		{module: s.Components, out: "opt/cni/bin",
			packages: []string{plugins + "main/bridge", plugins + "main/loopback", plugins + "ipam/host-local", plugins + "meta/portmap"}},
	}
}

// hyperNames are the names of the links to hyper. The name of a link selects the component that
// hyper runs.
var hyperNames = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"}

// addPrograms builds and adds all programs.
func (t tree) addPrograms(ctx context.Context, s Spec) error {
	kubernetes, err := moduleVersion(ctx, s.Module, "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	for _, b := range builds(s, kubernetes) {
		dir, err := filepath.Abs(filepath.Join(s.Dir, "programs", b.out))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := b.run(ctx, dir); err != nil {
			return err
		}
		for _, p := range b.packages {
			name := filepath.Base(p)
			if err := t.addFile(b.out+"/"+name, 0o755, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	for _, name := range hyperNames {
		t.add("bin/"+name, fs.ModeSymlink|0o777, []byte("hyper"))
	}
	return t.addFile("bin/busybox", 0o755, s.Busybox)
}

// run builds the packages into dir. goCommand overrides the caller's environment variables that
// would change the result.
func (b build) run(ctx context.Context, dir string) error {
	cgo := "0"
	if b.cgo {
		cgo = "1"
	}
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-tags", b.tags, "-ldflags", strings.TrimSpace("-s -w " + b.ldflags), "-o", dir + "/"}, b.packages...)
	if _, err := goCommand(ctx, b.module, cgo, args...); err != nil {
		return fmt.Errorf("%s: cannot build: %w", strings.Join(b.packages, " "), err)
	}
	return nil
}

// moduleVersion returns the version of a dependency of the Go module in the directory module.
func moduleVersion(ctx context.Context, module, dependency string) (string, error) {
	out, err := goCommand(ctx, module, "0", "list", "-m", "-f", "{{.Version}}", dependency)
	if err != nil {
		return "", fmt.Errorf("%s: cannot find its version: %w", dependency, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func goCommand(ctx context.Context, dir, cgo string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, "go", args...)
	var stderr bytes.Buffer
	c.Dir, c.Stderr = dir, &stderr
	c.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=-mod=readonly", "GOOS=linux", "GOARCH=amd64", "GOAMD64=v1",
		"CGO_CFLAGS=-O2", "CGO_LDFLAGS=", "GOEXPERIMENT=", "GOWORK=off")
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// These are the names of the container images. The files containerd.toml and pod.yaml contain the
// same names.
const (
	pauseImage   = "registry.k8s.io/pause:3.10.2"
	busyboxImage = "test.local/busybox:1"
)

// addImages adds the archives of the two container images. The first archive has the pause program
// of our image, which addImages compiles.
func (t tree) addImages(s Spec) error {
	program, err := pause.Compile(s.Dir)
	if err != nil {
		return err
	}
	busybox, err := os.ReadFile(s.Busybox)
	if err != nil {
		return err
	}
	for file, image := range map[string]ociarchive.Image{
		"srv/pause.tar": ociarchive.Program(pauseImage, "pause", program),
		"srv/busybox.tar": {
			Name:   busyboxImage,
			Layers: []ociarchive.Layer{{"/bin/busybox": {Mode: 0o755, Content: busybox}}},
			Config: v1.Config{Entrypoint: []string{"/bin/busybox"}},
		},
	} {
		var archive bytes.Buffer
		if err := ociarchive.Write(&archive, image); err != nil {
			return err
		}
		t.add(file, 0o644, archive.Bytes())
	}
	return nil
}

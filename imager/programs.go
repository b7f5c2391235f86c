package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/pkg/paths"
)

// componentsModule is the directory of the module that pins third-party programs.
const componentsModule = "imager/components"

// Program is an executable that is built from source.
type Program struct {
	Name    string
	Root    string // path in the root; empty: not in the root (init is in the initramfs)
	Module  string // directory of the Go module, relative to the working directory
	Package string
	Tags    string
	CGO     bool // static, with the C compiler and the sysroot; for runc's libseccomp
	// Stamp names the module whose version the program reports as its own, and the variables for
	// the version. Upstream's release scripts set these variables; without them, a program does not
	// know its version.
	Stamp Stamp
}

// Stamp is a module, and the variables with their packages that get its version.
type Stamp struct {
	Module string
	Vars   []string
}

// kubernetesStamp sets the version in `kubectl version` and in a Node's status. Kubernetes'
// components use the first variables, clients use the second in their User-Agent.
var kubernetesStamp = Stamp{"k8s.io/kubernetes", []string{
	"k8s.io/component-base/version.gitVersion",
	"k8s.io/client-go/pkg/version.gitVersion",
}}

// programs are the executables of the image that are built from source.
var programs = []Program{
	{Name: "init", Module: ".", Package: "./init"},
	{Name: "machined", Root: paths.Machined, Module: ".", Package: "./machined", Tags: "grpcnotrace"},
	{Name: "orchestrator", Root: paths.Orchestrator, Module: ".", Package: "./orchestrator", Tags: "providerless", Stamp: kubernetesStamp},
	{Name: "containerd", Root: paths.Containerd, Module: componentsModule, Package: "github.com/containerd/containerd/v2/cmd/containerd", Tags: containerdTags,
		Stamp: Stamp{"github.com/containerd/containerd/v2", []string{"github.com/containerd/containerd/v2/version.Version"}}},
	{Name: "containerd-shim-runc-v2", Root: "/usr/bin/containerd-shim-runc-v2", Module: componentsModule, Package: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", Tags: containerdTags},
	{Name: "runc", Root: paths.Runc, Module: componentsModule, Package: "github.com/opencontainers/runc", Tags: runcTags, CGO: true},
	{Name: "bridge", Root: paths.CNIPlugins + "/bridge", Module: componentsModule, Package: "github.com/containernetworking/plugins/plugins/main/bridge"},
	{Name: "host-local", Root: paths.CNIPlugins + "/host-local", Module: componentsModule, Package: "github.com/containernetworking/plugins/plugins/ipam/host-local"},
	{Name: "loopback", Root: paths.CNIPlugins + "/loopback", Module: componentsModule, Package: "github.com/containernetworking/plugins/plugins/main/loopback"},
	{Name: "portmap", Root: paths.CNIPlugins + "/portmap", Module: componentsModule, Package: "github.com/containernetworking/plugins/plugins/meta/portmap"},
}

// containerdTags omit the plugins that the configuration of containerd disables. With grpcnotrace
// the linker removes unused methods from the shim, which needs memory in each pod: without the tag,
// gRPC contains templates, which call methods by name.
const containerdTags = "no_btrfs,no_zfs,no_aufs,no_devmapper,no_tracing,grpcnotrace"

// runcTags omit CRIU: its program is not in the image.
const runcTags = "seccomp,netgo,osusergo,runc_nocriu"

// kubectl is built for the user, beside orlopctl; it is not in the image.
var kubectl = Program{Name: "kubectl", Module: ".", Package: "k8s.io/kubernetes/cmd/kubectl", Tags: "providerless", Stamp: kubernetesStamp}

// Build makes the program's executable. The bytes depend only on the source and the versions of the
// compilers. The go tool skips up-to-date results. The environment c is for a program
// with C code (sysroot.environment).
func (p Program) Build(out string, c []string) error {
	abs, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	ldflags := "-s -w"
	if p.CGO {
		ldflags += " -extldflags -static"
	}
	stamped, err := p.stamp()
	if err != nil {
		return err
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", p.Tags, "-ldflags", ldflags+stamped, "-o", abs, p.Package)
	build.Dir = p.Module
	// The caller's environment must not change the result: flags, the CPU level, compilers.
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOOS=linux", "GOARCH=amd64", "GOAMD64=v1", "GOFIPS140=off",
		"CXX=g++", "AR=ar", "PKG_CONFIG=pkg-config", "CGO_CPPFLAGS=", "GOEXPERIMENT=", "GOWORK=off")
	if p.CGO {
		build.Env = append(append(build.Env, "CGO_ENABLED=1"), c...)
	}
	if msg, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: cannot build: %w\n%s", p.Name, err, strings.TrimSpace(string(msg)))
	}
	return nil
}

// stamp returns the linker's flags for Stamp.
func (p Program) stamp() (string, error) {
	if p.Stamp.Module == "" {
		return "", nil
	}
	list := exec.Command("go", "list", "-m", "-f", "{{.Version}}", p.Stamp.Module)
	list.Dir, list.Env = p.Module, append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	version, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("%s: cannot find the version of %s: %w", p.Name, p.Stamp.Module, err)
	}
	var flags strings.Builder
	for _, v := range p.Stamp.Vars {
		fmt.Fprintf(&flags, " -X %s=%s", v, strings.TrimSpace(string(version)))
	}
	return flags.String(), nil
}

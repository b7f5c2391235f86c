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
	Name string
	// Root is the path in the root. It is empty if the root does not contain the executable. Init
	// is in the initramfs.
	Root    string
	Module  string // directory of the Go module, relative to the working directory
	Package string
	Tags    string
	// CGO is true for a program with C code. Its executable is static: the C compiler links it with
	// the libraries of the sysroot. runc needs this for libseccomp.
	CGO bool
	// Stamp sets the version that the program reports to the version of a module. Upstream's
	// release scripts set the same variables. Without them, a program does not know its version.
	Stamp Stamp
}

// Stamp names a module, and the variables that the linker sets to the version of the module. A
// variable has the form PACKAGE.NAME.
type Stamp struct {
	Module string
	Vars   []string
}

// kubernetesStamp sets the version in `kubectl version` and in the status of a Node. The components
// of Kubernetes use the first variable. Clients send the second variable in the header User-Agent.
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

// containerdTags omit the plugins that the configuration of containerd disables. The tag
// grpcnotrace removes the templates from gRPC. Templates call methods by name, so a program with
// templates retains all methods when it is linked. Without templates, the shim is smaller, which
// saves memory in each pod.
const containerdTags = "no_btrfs,no_zfs,no_aufs,no_devmapper,no_tracing,grpcnotrace"

// runcTags omit checkpoints with CRIU, because the image does not contain the program criu.
const runcTags = "seccomp,netgo,osusergo,runc_nocriu"

// kubectl is built for operators, beside orlopctl. The image does not contain it.
var kubectl = Program{Name: "kubectl", Module: ".", Package: "k8s.io/kubernetes/cmd/kubectl", Tags: "providerless", Stamp: kubernetesStamp}

// Build compiles the program to the file out. The bytes depend only on the source and the versions
// of the compilers. The go command skips up-to-date results. c are the environment variables for C
// code (sysroot.environment); Build ignores them if CGO is false.
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
	// These variables replace variables of the caller. Otherwise flags, CPU level and compilers of
	// the caller would change the result.
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

// stamp returns the linker flags that set the variables of p.Stamp; empty without a module.
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

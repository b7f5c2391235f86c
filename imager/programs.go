package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/pkg/paths"
)

// componentsModule is the folder of the module that pins third-party programs.
const componentsModule = "imager/components"

// Program is an executable that is built from source.
type Program struct {
	Name    string
	Root    string // where it is in the root; empty: not there (init is in the initramfs)
	Module  string // folder of the Go module, relative to the working folder
	Package string
	Tags    string
	CGO     bool // static, with the C compiler; for runc's libseccomp
}

// programs is every executable of the image that is built from source.
var programs = []Program{
	{Name: "init", Module: ".", Package: "./init"},
	{Name: "machined", Root: paths.Machined, Module: ".", Package: "./machined"},
	{Name: "orchestrator", Root: paths.Orchestrator, Module: ".", Package: "./orchestrator", Tags: "providerless"},
	{Name: "containerd", Root: paths.Containerd, Module: componentsModule, Package: "github.com/containerd/containerd/v2/cmd/containerd", Tags: containerdTags},
	{Name: "containerd-shim-runc-v2", Root: "/usr/bin/containerd-shim-runc-v2", Module: componentsModule, Package: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", Tags: containerdTags},
	{Name: "runc", Root: paths.Runc, Module: componentsModule, Package: "github.com/opencontainers/runc", Tags: "seccomp,netgo,osusergo", CGO: true},
	{Name: "bridge", Root: paths.CNIPlugins + "/bridge", Module: componentsModule, Package: "github.com/containernetworking/plugins/plugins/main/bridge"},
	{Name: "host-local", Root: paths.CNIPlugins + "/host-local", Module: componentsModule, Package: "github.com/containernetworking/plugins/plugins/ipam/host-local"},
	{Name: "loopback", Root: paths.CNIPlugins + "/loopback", Module: componentsModule, Package: "github.com/containernetworking/plugins/plugins/main/loopback"},
	{Name: "portmap", Root: paths.CNIPlugins + "/portmap", Module: componentsModule, Package: "github.com/containernetworking/plugins/plugins/meta/portmap"},
}

const containerdTags = "no_btrfs,no_zfs,no_aufs,no_devmapper"

// kubectl is built for the user, beside orlopctl; it is not in the image.
var kubectl = Program{Name: "kubectl", Module: ".", Package: "k8s.io/kubernetes/cmd/kubectl", Tags: "providerless"}

// Build makes the program's executable. The bytes depend on the source and the versions of the compilers only. The go
// tool keeps what is up to date.
func (p Program) Build(out string) error {
	abs, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	ldflags, cgo := "-s -w", "0"
	if p.CGO {
		ldflags, cgo = "-s -w -extldflags -static", "1"
	}
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", p.Tags, "-ldflags", ldflags, "-o", abs, p.Package)
	c.Dir = p.Module
	// GOFLAGS of the caller must not change the result. The CPU level and C flags neither.
	c.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=-mod=readonly", "GOOS=linux", "GOARCH=amd64", "GOAMD64=v1",
		"CGO_CFLAGS=-O2", "CGO_CPPFLAGS=", "CGO_LDFLAGS=", "GOEXPERIMENT=", "GOWORK=off")
	if msg, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: cannot build: %w\n%s", p.Name, err, strings.TrimSpace(string(msg)))
	}
	return nil
}

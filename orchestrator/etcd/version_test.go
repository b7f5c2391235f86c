package etcd

import (
	"runtime/debug"
	"testing"

	"go.etcd.io/etcd/api/v3/version"
)

// TestModuleVersion checks that the version is the server's, not that of etcd's other modules.
func TestModuleVersion(t *testing.T) {
	api, server := &debug.Module{Path: "go.etcd.io/etcd/api/v3", Version: "v3.6.13"}, &debug.Module{Path: serverModule, Version: "v3.6.8"}
	replaced := &debug.Module{Path: serverModule, Version: "v3.6.8", Replace: &debug.Module{Path: "example.com/etcd", Version: "v3.6.9-fix"}}
	dir := &debug.Module{Path: serverModule, Version: "v3.6.8", Replace: &debug.Module{Path: "../etcd"}}
	for want, deps := range map[string][]*debug.Module{
		"3.6.8": {api, server}, "3.6.9-fix": {api, replaced}, "none": {api}, "otherwise": nil,
	} {
		otherwise := want
		if want == "3.6.8" || want == "3.6.9-fix" {
			otherwise = "3.6.13"
		}
		if got := moduleVersion(&debug.BuildInfo{Deps: deps}, otherwise); got != want {
			t.Errorf("%v: %s, want %s", deps, got, want)
		}
	}
	if got := moduleVersion(&debug.BuildInfo{Deps: []*debug.Module{dir}}, "3.6.13"); got != "3.6.8" {
		t.Errorf("replaced by a directory: %s", got)
	}
}

// TestServerVersion checks that etcd reports the version that the format of the data records. The
// executable of a test names no modules, so both are the API's here; TestBuiltVersion covers the
// output of the linker.
func TestServerVersion(t *testing.T) {
	nameServer()
	if version.Version != serverVersion() || ownFormat().Etcd != version.Version {
		t.Errorf("etcd calls itself %s, and the data %s", version.Version, ownFormat().Etcd)
	}
}

// TestBuiltVersion parses the output of `go version -m` for an executable.
func TestBuiltVersion(t *testing.T) {
	info, err := debug.ParseBuildInfo("path\tgithub.com/orlop-os/orlop/orchestrator\nmod\tgithub.com/orlop-os/orlop\t(devel)\t\n" +
		"dep\tgo.etcd.io/etcd/api/v3\tv3.6.13\th1:a=\ndep\tgo.etcd.io/etcd/client/v3\tv3.6.13\th1:b=\ndep\tgo.etcd.io/etcd/server/v3\tv3.6.8\th1:c=\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := moduleVersion(info, "3.6.13"); got != "3.6.8" {
		t.Errorf("the server's version is %s", got)
	}
}

package machines

import (
	"strings"

	"golang.org/x/mod/semver"

	"github.com/orlop-os/orlop/pkg/machineapi"
)

// newestRelease returns the newest release of the catalogue with this version of Kubernetes, or nil
// if there is none.
func newestRelease(catalogue []machineapi.Release, kubernetes string) *machineapi.Release {
	var newest *machineapi.Release
	for i, r := range catalogue {
		if sameKubernetes(r.Kubernetes, kubernetes) && (newest == nil || semver.Compare("v"+r.Version, "v"+newest.Version) > 0) {
			newest = &catalogue[i]
		}
	}
	return newest
}

// sameKubernetes reports whether two versions of Kubernetes are equal. It ignores a letter v at the
// beginning, because Cluster API permits both forms in Machine.spec.version.
func sameKubernetes(a, b string) bool {
	return strings.TrimPrefix(a, "v") == strings.TrimPrefix(b, "v")
}

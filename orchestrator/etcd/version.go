package etcd

import (
	"runtime/debug"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/version"
)

// serverModule is etcd's server. Its version is that of the code which writes the data; the modules
// of its API and its clients may be newer, and version.Version is the API's.
const serverModule = "go.etcd.io/etcd/server/v3"

// serverVersion is the version of the etcd that is linked, "3.6.8".
var serverVersion = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version.Version
	}
	return moduleVersion(info, version.Version)
})

// moduleVersion is that of etcd's server in an executable, or otherwise.
func moduleVersion(info *debug.BuildInfo, otherwise string) string {
	for _, m := range info.Deps {
		if m.Path != serverModule {
			continue
		}
		if m.Replace != nil && m.Replace.Version != "" {
			m = m.Replace
		}
		if v, ok := strings.CutPrefix(m.Version, "v"); ok {
			return v
		}
	}
	return otherwise
}

// nameServer has etcd call itself by its own version, in Status and to other members. It is called
// before etcd starts.
var nameServer = sync.OnceFunc(func() { version.Version = serverVersion() })

package etcd

import (
	"runtime/debug"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/version"
)

// serverModule is the module of etcd's server. Its version is the version of the code that writes
// the data. The modules of the API and the clients may be newer, and version.Version is the API's.
const serverModule = "go.etcd.io/etcd/server/v3"

// serverVersion is the version of the linked etcd, such as "3.6.8".
var serverVersion = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version.Version
	}
	return moduleVersion(info, version.Version)
})

// moduleVersion returns the version of etcd's server in an executable, or otherwise if the
// executable does not name it.
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

// nameServer makes etcd report the version of its server module in Status and to other members. It
// is called before etcd starts.
var nameServer = sync.OnceFunc(func() { version.Version = serverVersion() })

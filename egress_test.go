package orlop

import (
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
)

// ownConnections are the files of the machine's programs that use the HTTP or TLS packages
// directly, with the reason. Package egress applies the proxy and the CAs of the site. All
// connections to servers outside the cluster use package egress, except connections to servers with
// a CA of their own.
var ownConnections = map[string]string{
	"apid/credentials.go":                    "it is the server of the management API",
	"metricsd/files.go":                      "it is the server of the metrics",
	"machined/membership/certificates.go":    "the certificates of the machine's own cluster",
	"machined/resolver/upstream_linux.go":    "resolvers, which have their own CA, and no HTTP",
	"machined/timesync/nts/exchange.go":      "time servers, which have their own CA, and no HTTP",
	"machined/upgrade/probes.go":             "apid of this machine",
	"machined/images/registries.go":          "the client of a transport that package egress completes",
	"machined/logship/shipper.go":            "TLS above a connection of package egress",
	"machined/logship/sender/sender.go":      "TLS above a connection of package egress",
	"machined/logship/sender/batches.go":     "HTTP above a connection of sender.go",
	"orchestrator/apiready/apiready.go":      "API servers of the cluster",
	"orchestrator/etcd/discovery.go":         "etcd members of the cluster",
	"orchestrator/etcd/s3/s3.go":             "the client of a transport that package egress completes",
	"orchestrator/exporter/exporter.go":      "programs of this machine",
	"orchestrator/kms/transit.go":            "the client of a transport that package egress completes",
	"orchestrator/health/health.go":          "components of this machine",
	"orchestrator/health/probe.go":           "components of this machine",
	"orchestrator/metrics/scrape.go":         "kubelets of the cluster",
	"orchestrator/offlineapi/run.go":         "it is the offline API server",
	"pkg/admission/claim/signature.go":       "it selects the operator's CA for a signature, and makes no connection",
	"pkg/client/client.go":                   "the management API of machines",
	"pkg/client/exchange.go":                 "the management API of machines",
	"pkg/egress/dial.go":                     "it is package egress, which connects to the proxy",
	"pkg/egress/egress.go":                   "it is package egress",
	"pkg/egress/forward.go":                  "it is package egress",
	"pkg/machineprovider/redfish/config.go":  "management controllers, in a network of the site",
	"pkg/pki/server.go":                      "servers of the cluster",
	"pkg/service/exposition/socket_linux.go": "sockets of this machine",
	"pkg/service/profile/profile.go":         "a socket of this machine",
	"podlogd/main_linux.go":                  "a socket of this machine",
	"pkg/artifact/registry/registry.go":      "the client of a transport that package egress completes",
}

// connectionMakers are the types and functions of the standard library that make connections with
// HTTP or TLS, or select CAs for them.
var connectionMakers = []string{
	"http.Client", "http.DefaultClient", "http.DefaultTransport", "http.Get", "http.Head", "http.Post", "http.PostForm", "http.ProxyFromEnvironment", "http.Transport",
	"tls.Client", "tls.Config", "tls.Dial", "tls.DialWithDialer", "tls.Dialer", "x509.NewCertPool", "x509.SystemCertPool",
}

// TestEgress checks that only package egress makes connections of the machine's programs to servers
// outside the cluster, with the exceptions in ownConnections.
func TestEgress(t *testing.T) {
	found := map[string][]string{}
	for _, f := range files(t) {
		program := slices.ContainsFunc([]string{"apid", "init", "machined", "metricsd", "orchestrator", "podlogd", "pkg"}, func(dir string) bool { return f.pkg == dir || strings.HasPrefix(f.pkg, dir+"/") })
		if !program || f.test || strings.HasSuffix(f.pkg, "test") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			var made ast.Expr
			switch n := n.(type) {
			case *ast.CompositeLit:
				made = n.Type
			case *ast.CallExpr:
				made = n.Fun
			case *ast.SelectorExpr:
				if n.Sel.Name == "DefaultClient" || n.Sel.Name == "DefaultTransport" || n.Sel.Name == "ProxyFromEnvironment" {
					made = n
				}
			}
			if of, ok := made.(*ast.SelectorExpr); ok {
				if pkg, ok := of.X.(*ast.Ident); ok && slices.Contains(connectionMakers, pkg.Name+"."+of.Sel.Name) {
					found[f.path] = append(found[f.path], pkg.Name+"."+of.Sel.Name)
				}
			}
			return true
		})
	}
	for _, file := range slices.Sorted(maps.Keys(found)) {
		if ownConnections[file] == "" {
			t.Errorf("%s makes connections with %s: use package egress, or add the file with the reason to ownConnections", file, strings.Join(found[file], ", "))
		}
	}
	for file := range ownConnections {
		if len(found[file]) == 0 {
			t.Errorf("%s is in ownConnections and makes no connection", file)
		}
	}
}

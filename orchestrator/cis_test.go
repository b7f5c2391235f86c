package main

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"gotest.tools/v3/golden"
	auditv1 "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestCIS checks the flags and files of a control-plane machine's components against the CIS
// Kubernetes Benchmark, and writes docs/cis.md. kube-bench itself looks for processes with
// upstream's names and for files of kubeadm, which do not exist here.
func TestCIS(t *testing.T) {
	spec := testSpec()
	// The etcd of a single machine has no network listeners, so the test has two machines.
	spec.ControlPlanes = append([]netip.Addr{netip.MustParseAddr("192.0.2.9")}, spec.Node.IPs...)
	machine := described{components: map[string]component.Component{}}
	for _, c := range Services(spec, dirs.System()) {
		machine.components[c.Name] = c
	}
	var err error
	if machine.credentials, err = credentials.Plan(spec, authorities(t)); err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString(cisHead)
	for _, section := range benchmark {
		fmt.Fprintf(&page, "\n## %s\n\n| control | wanted | here |\n|---|---|---|\n", section.title)
		for _, c := range section.controls {
			result := "met"
			if c.check != nil {
				if wrong := c.check(machine); wrong != "" {
					t.Errorf("%s %s: %s", c.id, c.wanted, wrong)
				}
			}
			switch {
			case c.check == nil && c.why == "":
				t.Errorf("%s %s: is neither checked nor explained", c.id, c.wanted)
			case c.open:
				result = "**not met**: " + c.why
			case c.check == nil:
				result = "met by design: " + c.why
			case c.why != "":
				result = "met otherwise: " + c.why
			}
			if c.open && !c.manual {
				t.Errorf("%s %s: an automated control has to be met", c.id, c.wanted)
			}
			fmt.Fprintf(&page, "| %s | %s | %s |\n", c.id, c.wanted, result)
		}
	}
	// relative to testdata
	golden.Assert(t, page.String(), filepath.Join("..", "..", "docs", "cis.md"))
}

const cisHead = `# The CIS Kubernetes Benchmark, control by control

The numbers are those of kube-bench's ` + "`cis-1.12`" + ` (control plane 1 and 3, etcd 2, nodes 4).
kube-bench itself finds nothing on an Orlop OS machine: it reads the command lines of processes with
names such as kube-apiserver or kubelet, and the files of kubeadm. Therefore
` + "`orchestrator/cis_test.go`" + ` applies the same checks to the flags and files with which the components
start, and writes this page. If a control is no longer met, the test fails.

- *Met*: the test checks the setting that the benchmark wants.
- *Met otherwise*: the purpose of the control is met by other means. The row names them,
  and the test checks them.
- *Met by design*: no setting exists that the test could check; the row gives the reason.
- *Not met*: the row gives the reason. Only manual controls can have this result: kube-bench prints
  a WARN for them, and a person judges.
`

// described contains the components of a machine by name, and the files that it writes for them.
type described struct {
	components  map[string]component.Component
	credentials credentials.Want
}

// control is a control of the benchmark.
type control struct {
	id, wanted string
	manual     bool                           // the benchmark's term: a person has to decide
	check      func(machine described) string // returns the problem, or ""
	why        string                         // how else the control is met, or why it is not met
	open       bool                           // not met
}

const (
	apiServer, manager, kubeScheduler, store, agent, proxy = "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", "kubelet", "kube-proxy"
)

// value returns the value of a flag, and whether it is set.
func (d described) value(name, flag string) (string, bool) {
	for _, arg := range d.components[name].Args {
		if f, v, _ := strings.Cut(arg, "="); f == "--"+flag {
			return v, true
		}
	}
	return "", false
}

// set requires flags to be set.
func set(name string, flags ...string) func(described) string {
	return func(d described) string {
		for _, flag := range flags {
			if v, given := d.value(name, flag); !given || v == "" {
				return "--" + flag + " is not set"
			}
		}
		return ""
	}
}

// unset requires a flag not to be set.
func unset(name, flag string) func(described) string {
	return func(d described) string {
		if v, given := d.value(name, flag); given {
			return "--" + flag + "=" + v + " is set"
		}
		return ""
	}
}

// is requires a flag to have a value.
func is(name, flag, want string) func(described) string {
	return func(d described) string {
		if v, _ := d.value(name, flag); v != want {
			return fmt.Sprintf("--%s is %q, want %q", flag, v, want)
		}
		return ""
	}
}

// atLeast requires a flag to be at least a number.
func atLeast(name, flag string, want int) func(described) string {
	return func(d described) string {
		v, _ := d.value(name, flag)
		var n int
		if _, err := fmt.Sscan(v, &n); err != nil || n < want {
			return fmt.Sprintf("--%s is %q, want at least %d", flag, v, want)
		}
		return ""
	}
}

// has requires that the list of a flag contains an entry, or, if want is false, does not contain
// it.
func has(name, flag, entry string, want bool) func(described) string {
	return func(d described) string {
		v, _ := d.value(name, flag)
		if strings.Contains(","+v+",", ","+entry+",") != want {
			return fmt.Sprintf("--%s=%s: %s in it is %v", flag, v, entry, !want)
		}
		return ""
	}
}

// The function in reads a field of a configuration file; the path's parts are separated by dots.
func in(name, file, path string, want func(v any) bool) func(described) string {
	return func(d described) string {
		for _, f := range d.components[name].Files {
			if filepath.Base(f.Path) != file {
				continue
			}
			var v any
			if err := yaml.Unmarshal([]byte(f.Content), &v); err != nil {
				return err.Error()
			}
			for key := range strings.SplitSeq(path, ".") {
				fields, _ := v.(map[string]any)
				v = fields[key]
			}
			if !want(v) {
				return fmt.Sprintf("%s: %s is %v", file, path, v)
			}
			return ""
		}
		return "there is no file " + file
	}
}

func equal(want any) func(any) bool { return func(v any) bool { return v == want } }
func given(v any) bool              { return v != nil && v != "" }
func absent(v any) bool             { return v == nil }

// strong requires a list of at least one cipher suite, all with forward secrecy and ECDSA. Go calls
// these suites secure.
func strong(v any) bool {
	list, _ := v.([]any)
	for _, suite := range list {
		if !strings.HasPrefix(fmt.Sprint(suite), "TLS_ECDHE_ECDSA_WITH_") {
			return false
		}
	}
	return len(list) > 0
}

// closed requires that only their user can access the files of components, except for resolv.conf.
func closed(names ...string) func(described) string {
	return func(d described) string {
		for _, name := range names {
			if len(d.components[name].Files) == 0 {
				return name + " has no files"
			}
			for _, f := range d.components[name].Files {
				if f.Mode&^fs.FileMode(0o600) != 0 && filepath.Base(f.Path) != "resolv.conf" {
					return fmt.Sprintf("%s has the mode %04o", f.Path, f.Mode)
				}
			}
		}
		return ""
	}
}

// ownerOnly requires that only the user of a component can access the files that machined writes
// for it, and that these files are read-only. Issued files always have mode 0400, and directories
// 0700 (credentials.Leaf, credentials.Dir).
func ownerOnly(d described) string {
	if len(d.credentials.Dirs) == 0 || len(d.credentials.Files) == 0 || len(d.credentials.Leaves) == 0 {
		return "there are no credentials"
	}
	for _, f := range d.credentials.Files {
		if f.Mode&^fs.FileMode(0o400) != 0 {
			return fmt.Sprintf("%s has the mode %04o", f.Path, f.Mode)
		}
	}
	return ""
}

// unprivileged requires that the credentials in a process's directory belong to a user other than
// root.
func unprivileged(dir string) func(described) string {
	return func(d described) string {
		for _, f := range d.credentials.Dirs {
			if filepath.Base(f.Path) == dir && f.UID != 0 {
				return ""
			}
		}
		return "there is no directory " + dir + " of a user who is not root"
	}
}

// encryptsBy checks the first of the providers that encrypt Secrets, which is the provider for
// writes. It requires that this provider is of a certain kind and has a key.
func encryptsBy(provider string) func(described) string {
	return func(d described) string {
		for _, f := range d.credentials.Files {
			if filepath.Base(f.Path) != nodespec.Encryption {
				continue
			}
			var content struct {
				Resources []struct {
					Resources []string
					Providers []map[string]struct{ Keys []any }
				}
			}
			if err := yaml.Unmarshal(f.Content, &content); err != nil {
				return err.Error()
			}
			for _, r := range content.Resources {
				if slices.Contains(r.Resources, "secrets") && len(r.Providers) > 0 && len(r.Providers[0][provider].Keys) > 0 {
					return ""
				}
			}
			return fmt.Sprintf("Secrets are not encrypted by %s: %s", provider, f.Path)
		}
		return "there is no file " + nodespec.Encryption
	}
}

// all returns the first problem of several checks.
func all(checks ...func(described) string) func(described) string {
	return func(d described) string {
		for _, check := range checks {
			if wrong := check(d); wrong != "" {
				return wrong
			}
		}
		return ""
	}
}

// overSocket requires that the API server reaches etcd by a Unix socket, so that the
// connection needs no TLS.
func overSocket(d described) string {
	if v, _ := d.value(apiServer, "etcd-servers"); !strings.HasPrefix(v, "unix:///") {
		return "--etcd-servers is " + v
	}
	return ""
}

const (
	noPod      = "no pod specifications and no service files exist, because the verified image defines the processes"
	ownUser    = "the files are in a directory with mode 0700 that belongs to the user of the process; none of these processes runs as root"
	inMemory   = "at each boot the credentials are written to directories in memory with mode 0700. Each file has mode 0400 and belongs to the user that needs it (`machined/credentials`)"
	onAHealth  = "`authentication.yaml` permits anonymous requests only to /livez, /readyz and /healthz"
	byMachined = "`machined/credentials` renews certificates after two thirds of their validity, and the kubelet reads the new certificates; the kubelet has no right to request a certificate"
)

var benchmark = []struct {
	title    string
	controls []control
}{
	{"1.1 Files of the control plane", []control{
		{id: "1.1.1–1.1.8", wanted: "pod specifications of API server, controller manager, scheduler and etcd are 0600 and root's", check: closed(apiServer, manager, kubeScheduler, store), why: noPod + ". The configuration files have mode 0600"},
		{id: "1.1.9–1.1.10", wanted: "CNI files are 0600 and root's", manual: true, why: "`orchestrator/podnetwork` writes the only file, in memory and with mode 0600. It runs in the process of the node, as root"},
		{id: "1.1.11", wanted: "etcd's data directory is 0700", check: in(store, "etcd.yaml", "data-dir", equal("/var/lib/etcd")), why: "the directory is created with that mode before etcd starts, for the user of the process `api`"},
		{id: "1.1.12", wanted: "etcd's data directory belongs to etcd", check: unprivileged("api"), why: "the directory belongs to the user of the process `api`, in which etcd runs and which is not root"},
		{id: "1.1.13–1.1.14", wanted: "the administrator's credentials are 0600 and root's", why: "a machine has no administrator's credentials; `orlopctl kubeconfig` creates them on the operator's computer, with a limited validity"},
		{id: "1.1.15–1.1.18", wanted: "kubeconfigs of scheduler and controller manager are 0600 and root's", check: closed(manager, kubeScheduler), why: ownUser},
		{id: "1.1.19", wanted: "the directory of the keys belongs to root", check: ownerOnly, why: inMemory},
		{id: "1.1.20–1.1.21", wanted: "certificates are 0644 or stricter, keys 0600", manual: true, check: ownerOnly, why: inMemory},
	}},
	{"1.2 API server", []control{
		{id: "1.2.1", wanted: "--anonymous-auth=false", manual: true, check: set(apiServer, "authentication-config"), why: onAHealth},
		{id: "1.2.2", wanted: "no --token-auth-file", check: unset(apiServer, "token-auth-file")},
		{id: "1.2.3", wanted: "DenyServiceExternalIPs", manual: true, check: has(apiServer, "enable-admission-plugins", "OrlopMachinePorts", true), why: "`OrlopMachinePorts` rejects external addresses outside the ranges in `networks.externalIPs` (by default none), and always rejects addresses of machines. If no range is listed, the service proxy ignores external addresses"},
		{id: "1.2.4", wanted: "--kubelet-client-certificate, --kubelet-client-key", check: set(apiServer, "kubelet-client-certificate", "kubelet-client-key")},
		{id: "1.2.5", wanted: "--kubelet-certificate-authority", check: set(apiServer, "kubelet-certificate-authority")},
		{id: "1.2.6", wanted: "no authorizer AlwaysAllow", check: all(unset(apiServer, "authorization-mode"), authorizers("AlwaysAllow", false))},
		{id: "1.2.7", wanted: "the authorizer Node", check: authorizers("Node", true)},
		{id: "1.2.8", wanted: "the authorizer RBAC", check: authorizers("RBAC", true)},
		{id: "1.2.9", wanted: "EventRateLimit", manual: true, open: true, why: "EventRateLimit is alpha upstream; events expire after `eventTTL` (by default an hour), and API Priority and Fairness limits requests"},
		{id: "1.2.10", wanted: "no admission plugin AlwaysAdmit", check: has(apiServer, "enable-admission-plugins", "AlwaysAdmit", false)},
		{id: "1.2.11", wanted: "AlwaysPullImages", manual: true, open: true, why: "a site without a registry imports its images with `orlopctl image import`; a machine without peers has no mirror of them (0041), and could not pull them"},
		{id: "1.2.12", wanted: "ServiceAccount is not disabled", check: unset(apiServer, "disable-admission-plugins")},
		{id: "1.2.13", wanted: "NamespaceLifecycle is not disabled", check: unset(apiServer, "disable-admission-plugins")},
		{id: "1.2.14", wanted: "NodeRestriction", check: has(apiServer, "enable-admission-plugins", "NodeRestriction", true)},
		{id: "1.2.15", wanted: "--profiling=false", check: is(apiServer, "profiling", "false")},
		{id: "1.2.16", wanted: "--audit-log-path", check: set(apiServer, "audit-log-path")},
		{id: "1.2.17", wanted: "--audit-log-maxage of 30 or more", check: atLeast(apiServer, "audit-log-maxage", 30)},
		{id: "1.2.18", wanted: "--audit-log-maxbackup of 10 or more", check: atLeast(apiServer, "audit-log-maxbackup", 10)},
		{id: "1.2.19", wanted: "--audit-log-maxsize of 100 or more", check: atLeast(apiServer, "audit-log-maxsize", 100)},
		{id: "1.2.20", wanted: "--request-timeout as appropriate", manual: true, check: unset(apiServer, "request-timeout")},
		{id: "1.2.21", wanted: "--service-account-lookup is not disabled", check: unset(apiServer, "service-account-lookup")},
		{id: "1.2.22", wanted: "--service-account-key-file", check: set(apiServer, "service-account-key-file")},
		{id: "1.2.23", wanted: "--etcd-certfile, --etcd-keyfile", check: overSocket, why: "the API server connects to the etcd of its machine over a Unix socket, never over a network. The socket is in a directory with mode 0700 that belongs to the user of their process"},
		{id: "1.2.24", wanted: "--tls-cert-file, --tls-private-key-file", check: set(apiServer, "tls-cert-file", "tls-private-key-file")},
		{id: "1.2.25", wanted: "--client-ca-file", check: set(apiServer, "client-ca-file")},
		{id: "1.2.26", wanted: "--etcd-cafile", check: overSocket, why: "see 1.2.23"},
		{id: "1.2.27", wanted: "--encryption-provider-config", manual: true, check: set(apiServer, "encryption-provider-config")},
		{id: "1.2.28", wanted: "encryption by aescbc, kms or secretbox", manual: true, check: encryptsBy("secretbox"), why: "the API server encrypts with the first provider in its list. This provider is secretbox, with a key of the configuration, which every cluster has; or kms, if the configuration lets a key manager encrypt (`machined/credentials`)"},
		{id: "1.2.29", wanted: "strong cipher suites", manual: true, check: suites(apiServer)},
		{id: "1.2.30", wanted: "--service-account-extend-token-expiration=false", check: is(apiServer, "service-account-extend-token-expiration", "false")},
	}},
	{"1.3 Controller manager", []control{
		{id: "1.3.1", wanted: "--terminated-pod-gc-threshold", manual: true, check: set(manager, "terminated-pod-gc-threshold")},
		{id: "1.3.2", wanted: "--profiling=false", check: is(manager, "profiling", "false")},
		{id: "1.3.3", wanted: "--use-service-account-credentials=true", check: is(manager, "use-service-account-credentials", "true")},
		{id: "1.3.4", wanted: "--service-account-private-key-file", check: set(manager, "service-account-private-key-file")},
		{id: "1.3.5", wanted: "--root-ca-file", check: set(manager, "root-ca-file")},
		{id: "1.3.6", wanted: "RotateKubeletServerCertificate is not disabled", check: unset(manager, "feature-gates")},
		{id: "1.3.7", wanted: "--bind-address=127.0.0.1", check: is(manager, "bind-address", "127.0.0.1")},
	}},
	{"1.4 Scheduler", []control{
		{id: "1.4.1", wanted: "--profiling=false", check: in(kubeScheduler, "kube-scheduler.yaml", "enableProfiling", equal(false))},
		{id: "1.4.2", wanted: "--bind-address=127.0.0.1", check: is(kubeScheduler, "bind-address", "127.0.0.1")},
	}},
	{"2 etcd", []control{
		{id: "2.1", wanted: "a certificate for clients", check: all(in(store, "etcd.yaml", "client-transport-security.cert-file", given), in(store, "etcd.yaml", "client-transport-security.key-file", given))},
		{id: "2.2", wanted: "clients need a certificate", check: in(store, "etcd.yaml", "client-transport-security.client-cert-auth", equal(true))},
		{id: "2.3", wanted: "no certificates that etcd signs itself (auto-tls)", check: in(store, "etcd.yaml", "client-transport-security.auto-tls", absent)},
		{id: "2.4", wanted: "a certificate for peers", check: all(in(store, "etcd.yaml", "peer-transport-security.cert-file", given), in(store, "etcd.yaml", "peer-transport-security.key-file", given))},
		{id: "2.5", wanted: "peers need a certificate", check: in(store, "etcd.yaml", "peer-transport-security.client-cert-auth", equal(true))},
		{id: "2.6", wanted: "no certificates for peers that etcd signs itself (auto-tls)", check: in(store, "etcd.yaml", "peer-transport-security.auto-tls", absent)},
		{id: "2.7", wanted: "a CA of its own", manual: true, check: in(store, "etcd.yaml", "client-transport-security.trusted-ca-file", equal("/run/orlop/kube/api/etcd-ca.crt"))},
	}},
	{"3 Configuration of the control plane", []control{
		{id: "3.1.1", wanted: "users have no client certificates", manual: true, why: "users log in with tokens of the issuers that the configuration names (`Cluster.spec.kubernetes.authentication`); the certificate of `orlopctl kubeconfig` is only for the set-up, and expires"},
		{id: "3.1.2", wanted: "users have no service accounts' tokens", manual: true, why: "no service accounts are created for users"},
		{id: "3.1.3", wanted: "users have no bootstrap tokens", manual: true, check: unset(apiServer, "enable-bootstrap-token-auth")},
		{id: "3.2.1", wanted: "an audit policy", manual: true, check: set(apiServer, "audit-policy-file")},
		{id: "3.2.2", wanted: "the audit policy covers the key events", manual: true, check: audited},
	}},
	{"4.1 Files of a node", []control{
		{id: "4.1.1–4.1.2", wanted: "the kubelet's service file is 0600 and root's", why: noPod},
		{id: "4.1.3–4.1.4", wanted: "the proxy's kubeconfig is 0600 and root's", manual: true, check: closed(proxy)},
		{id: "4.1.5–4.1.6", wanted: "the kubelet's kubeconfig is 0600 and root's", check: closed(agent)},
		{id: "4.1.7–4.1.8", wanted: "the clients' CA is 0644 or stricter and root's", manual: true, check: ownerOnly, why: inMemory},
		{id: "4.1.9–4.1.10", wanted: "the kubelet's configuration is 0600 and root's", check: closed(agent)},
	}},
	{"4.2 Kubelet", []control{
		{id: "4.2.1", wanted: "no anonymous requests", check: in(agent, "kubelet.yaml", "authentication.anonymous.enabled", equal(false))},
		{id: "4.2.2", wanted: "no authorizer AlwaysAllow", check: in(agent, "kubelet.yaml", "authorization.mode", equal("Webhook"))},
		{id: "4.2.3", wanted: "a CA for clients", check: in(agent, "kubelet.yaml", "authentication.x509.clientCAFile", given)},
		{id: "4.2.4", wanted: "no read-only port", manual: true, check: in(agent, "kubelet.yaml", "readOnlyPort", equal(0))},
		{id: "4.2.5", wanted: "idle streams end", manual: true, check: in(agent, "kubelet.yaml", "streamingConnectionIdleTimeout", absent)},
		{id: "4.2.6", wanted: "the kubelet makes its iptables chains", check: in(agent, "kubelet.yaml", "makeIPTablesUtilChains", absent)},
		{id: "4.2.7", wanted: "no --hostname-override", manual: true, open: true, why: "the flag is set, because it gives the node the name that the machine has in its configuration and in its certificates"},
		{id: "4.2.8", wanted: "events are not lost", manual: true, check: in(agent, "kubelet.yaml", "eventRecordQPS", absent)},
		{id: "4.2.9", wanted: "a certificate of the cluster's CA", manual: true, check: all(in(agent, "kubelet.yaml", "tlsCertFile", given), in(agent, "kubelet.yaml", "tlsPrivateKeyFile", given))},
		{id: "4.2.10", wanted: "client certificates are renewed", check: in(agent, "kubelet.yaml", "rotateCertificates", equal(false)), why: byMachined},
		{id: "4.2.11", wanted: "serving certificates are renewed", manual: true, check: in(agent, "kubelet.yaml", "serverTLSBootstrap", equal(false)), why: byMachined},
		{id: "4.2.12", wanted: "strong cipher suites", manual: true, check: in(agent, "kubelet.yaml", "tlsCipherSuites", strong)},
		{id: "4.2.13", wanted: "a limit of processes in a pod", manual: true, check: in(agent, "kubelet.yaml", "podPidsLimit", given)},
		{id: "4.2.14", wanted: "seccomp by default", manual: true, check: in(agent, "kubelet.yaml", "seccompDefault", equal(true))},
	}},
	{"4.3 Service proxy", []control{
		{id: "4.3.1", wanted: "metrics on 127.0.0.1 only", check: in(proxy, "kube-proxy.yaml", "metricsBindAddress", equal("127.0.0.1:10249"))},
	}},
}

// suites requires that a component's flag contains strong suites only.
func suites(name string) func(described) string {
	return func(d described) string {
		v, _ := d.value(name, "tls-cipher-suites")
		var list []any
		for suite := range strings.SplitSeq(v, ",") {
			list = append(list, suite)
		}
		if !strong(list) {
			return "--tls-cipher-suites is " + v
		}
		return ""
	}
}

// authorizers requires that the file that machined writes for the API server has an authorizer of a
// type, or that it has none.
func authorizers(kind string, want bool) func(described) string {
	return func(d described) string {
		if wrong := set(apiServer, "authorization-config")(d); wrong != "" {
			return wrong
		}
		for _, f := range (credentials.Access{}).Files("/") {
			if f.Name == nodespec.Authorization && strings.Contains(string(f.Content), "type: "+kind+"\n") == want {
				return ""
			}
		}
		return fmt.Sprintf("the API server has the authorizer %s: %v", kind, !want)
	}
}

// audited requires that every read of a secret, and every change, is logged, and that no log entry
// contains the content of a Secret, for any user. Upstream's own evaluator applies the policy to
// these requests.
func audited(d described) string {
	for _, f := range d.components[apiServer].Files {
		if filepath.Base(f.Path) != "audit-policy.yaml" {
			continue
		}
		rules, err := policy.LoadPolicyFromBytes([]byte(f.Content))
		if err != nil {
			return err.Error()
		}
		judge := policy.NewPolicyRuleEvaluator(rules)
		for _, who := range []user.DefaultInfo{
			{Name: "kubernetes-admin", Groups: []string{"system:masters", user.AllAuthenticated}},
			{Name: "system:node:n", Groups: []string{user.NodesGroup, user.AllAuthenticated}},
			{Name: "system:serviceaccount:kube-system:namespace-controller", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", user.AllAuthenticated}},
			{Name: "system:serviceaccount:default:default", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:default", user.AllAuthenticated}},
			{Name: user.KubeScheduler, Groups: []string{user.AllAuthenticated}},
			{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}},
		} {
			for _, what := range []struct{ group, resource, subresource string }{
				{"", "secrets", ""}, {"", "serviceaccounts", "token"}, {"", "configmaps", ""}, {"", "pods", ""}, {"", "pods", "exec"}, {"", "nodes", "proxy"},
				{"apps", "deployments", ""}, {"rbac.authorization.k8s.io", "clusterroles", ""}, {"admissionregistration.k8s.io", "validatingwebhookconfigurations", ""},
				{"certificates.k8s.io", "certificatesigningrequests", "approval"}, {"example.com", "widgets", ""},
			} {
				secret := what.resource == "secrets" || what.subresource == "token"
				acts := what.subresource == "exec" || what.subresource == "proxy" // also by GET
				for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
					read := verb == "get" || verb == "list" || verb == "watch"
					if read && !secret && !acts {
						continue
					}
					level := judge.EvaluatePolicyRule(authorizer.AttributesRecord{
						User: &who, Verb: verb, APIGroup: what.group, APIVersion: "v1", Resource: what.resource, Subresource: what.subresource, Name: "x", ResourceRequest: true,
					}).Level
					switch {
					case level == auditv1.LevelNone:
						return fmt.Sprintf("requests of %s to %s %s are not logged", who.Name, verb, what.resource)
					case level != auditv1.LevelMetadata && what.group != "rbac.authorization.k8s.io":
						return fmt.Sprintf("requests of %s to %s %s are logged with their content", who.Name, verb, what.resource)
					}
				}
			}
		}
		return ""
	}
	return "there is no audit policy"
}

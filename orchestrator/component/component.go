// Package component describes a component of the orchestrator as data: its process, its flags and
// its files. It starts nothing (package process does) and knows no particular component.
package component

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// The three processes, by failure domain and privilege.
const (
	API = "api" // etcd and kube-apiserver, user paths.UserAPI
	// Controllers runs kube-controller-manager, kube-scheduler, resource metrics and controllers of
	// Orlop OS, as user paths.UserControllers.
	Controllers = "controllers"
	// Node runs the kubelet, kube-proxy, CoreDNS, the pod network, its policies, the balancer for
	// the API server and other components of every node, as root.
	Node = "node"
)

// File is a file that is written before the component starts.
type File struct {
	Path    string
	Mode    fs.FileMode
	Content string
}

// Announce reports to machined whether the named component is ready, with a line for the operator.
type Announce func(component string, ready bool, detail string)

// Component is a supervised goroutine of a process.
type Component struct {
	Process string
	Name    string
	Args    []string // upstream's flags, if the component is an upstream program
	Files   []File
	// Run works until ctx is done, and then returns nil. If it returns at another time, the process
	// ends. In a description that is only printed, Run is nil.
	Run func(ctx context.Context, announce Announce) error
}

// External returns a placeholder for a component that Cluster.spec.external replaces. The argument
// by describes the replacement in a few words. The placeholder reports these words and is always
// ready.
func External(name, by string) Component {
	return Component{Process: Node, Name: name, Run: func(ctx context.Context, announce Announce) error {
		announce(name, true, ExternalDetail(by))
		<-ctx.Done()
		return nil
	}}
}

// ExternalDetail returns the detail that the placeholder of a replaced component reports.
func ExternalDetail(by string) string { return "does not run: " + by + " (Cluster.spec.external)" }

// String prints the component for users and golden files: name, flags, files with their content.
func (c Component) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", c.Process, c.Name)
	for _, arg := range c.Args {
		fmt.Fprintf(&b, "  %s\n", arg)
	}
	for _, f := range c.Files {
		fmt.Fprintf(&b, "  file %s %04o\n", f.Path, f.Mode)
		for line := range strings.Lines(f.Content) {
			fmt.Fprintf(&b, "  | %s\n", strings.TrimRight(line, "\n"))
		}
	}
	return b.String()
}

// WriteFiles writes the files of the component, each atomically, so that a reader never sees half
// of a file.
func (c Component) WriteFiles() error {
	for _, f := range c.Files {
		if err := WriteFile(f); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

// WriteFile writes a file atomically, and creates its directory (0755) if it is missing.
func WriteFile(f File) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return fmt.Errorf("%s: cannot create the directory: %w", f.Path, err)
	}
	if err := renameio.WriteFile(f.Path, []byte(f.Content), f.Mode); err != nil {
		return fmt.Errorf("%s: cannot write: %w", f.Path, err)
	}
	return nil
}

// YAML returns the YAML form of a value of maps, lists and plain values, for the content of a File.
func YAML(value any) string {
	text, err := yaml.Marshal(value)
	if err != nil {
		// plain values always have a YAML form
		panic(fmt.Sprintf("component: plain values have no YAML form: %v", err))
	}
	return string(text)
}

// ServingFlags are the flags of the server of an upstream controller at a port of loopback. The
// server asks the API server, with a kubeconfig, which clients it may answer.
func ServingFlags(dir, kubeconfig string, port int) []string {
	at := func(name string) string { return filepath.Join(dir, name) }
	return []string{
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		// The CA is in a file, so this server need not read the CA from the API server before it
		// starts.
		"--authentication-skip-lookup=true",
		"--client-ca-file=" + at(nodespec.CA),
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file=" + at(nodespec.ControllersServing),
		"--tls-private-key-file=" + at(nodespec.ControllersServingK),
		"--tls-min-version=VersionTLS12",
		"--tls-cipher-suites=" + strings.Join(StrongSuites(), ","),
	}
}

// EmulationFlags are the flags with which an upstream component of the control plane emulates the
// level of the cluster (docs/decisions/0096-two-phases.md); none if the level is the version of the
// component itself. The minimum compatibility version is upstream's default, one minor version
// below.
func EmulationFlags(spec nodespec.Spec) []string {
	if !spec.Emulated.Known() {
		return nil
	}
	return []string{"--emulated-version=" + spec.Emulated.String()}
}

// JoinPrefixes returns ranges as the value of a flag.
func JoinPrefixes(prefixes []netip.Prefix) string {
	var words []string
	for _, p := range prefixes {
		words = append(words, p.String())
	}
	return strings.Join(words, ",")
}

// StrongSuites returns the TLS 1.2 cipher suites of every server. All have forward secrecy and
// authenticated encryption. Go does not let programs choose the suites of TLS 1.3.
func StrongSuites() []string {
	return []string{
		"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
		"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
		"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
	}
}

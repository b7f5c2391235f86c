package kubeconfig

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestFile reads the kubeconfig back as every client does.
func TestFile(t *testing.T) {
	for _, controlPlane := range []bool{true, false} {
		spec := nodespec.Spec{Cluster: "c", ControlPlane: controlPlane, Endpoint: "https://cluster.example:6443"}
		dir := t.TempDir()
		for _, name := range []string{nodespec.CA, nodespec.KubeletCert, nodespec.KubeletKey} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file := File(spec, dir, "kubelet", nodespec.KubeletCert, nodespec.KubeletKey)
		if file.Path != dir+"/kubelet.kubeconfig" {
			t.Errorf("path %s", file.Path)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(file.Content))
		if err != nil {
			t.Fatal(err)
		}
		tls := config.TLSClientConfig
		if config.Host != "https://127.0.0.1:6443" || tls.ServerName != "localhost" {
			t.Errorf("server %s named %q, want the one on loopback", config.Host, tls.ServerName)
		}
		if tls.CAFile != dir+"/ca.crt" || tls.CertFile != dir+"/kubelet.crt" || tls.KeyFile != dir+"/kubelet.key" || len(tls.CertData) != 0 {
			t.Errorf("credentials %+v, want the files' names", tls)
		}
	}
}

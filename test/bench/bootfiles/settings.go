package bootfiles

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

// guestFiles maps files in the directory guest of the baseline to their paths and modes in the
// initramfs.
var guestFiles = []struct {
	from, name string
	mode       fs.FileMode
}{
	{"init", "init", 0o755},
	{"main", "main", 0o755},
	{"pod.yaml", "srv/pod.yaml", 0o644},
	{"kubelet.yaml", "etc/kubelet.yaml", 0o644},
	{"containerd.toml", "etc/containerd/config.toml", 0o644},
	{"cni.conflist", "etc/cni/net.d/10.conflist", 0o644},
}

// emptyDirs are the empty directories of the initramfs.
var emptyDirs = []string{"dev", "proc", "run", "sys", "tmp", "var/lib"}

// addSettings adds the scripts and the configurations of the guest.
func (t tree) addSettings(s Spec) error {
	for _, f := range guestFiles {
		if err := t.addFile(f.name, f.mode, filepath.Join(s.Module, "guest", f.from)); err != nil {
			return err
		}
	}
	for _, dir := range emptyDirs {
		t.add(dir, fs.ModeDir|0o755, nil)
	}
	t.add("etc/passwd", 0o644, []byte("root:x:0:0:root:/:/bin/sh\n"))
	t.add("etc/hosts", 0o644, []byte("127.0.0.1 localhost node1\n"))
	t.add("etc/resolv.conf", 0o644, []byte("nameserver 127.0.0.1\n"))
	return nil
}

// validity is the TTL of the certificates. A day is enough, because a machine of the baseline runs
// for minutes.
const validity = 24 * time.Hour

// kubeconfig is the kubeconfig of a component. The argument of the format is the name of the
// component's certificate.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", certificate-authority: /srv/pki/ca.crt}}]
users: [{name: u, user: {client-certificate: /srv/pki/%[1]s.crt, client-key: /srv/pki/%[1]s.key}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// addCertificates adds the certificates and keys of the cluster, in the layout of kubeadm. The keys
// of certificates are P-256 keys. The key that signs the tokens of service accounts is an RSA key.
func (t tree) addCertificates() error {
	ca, err := pki.NewCA("ca", validity)
	if err != nil {
		return err
	}
	t.add("srv/pki/ca.crt", 0o644, ca.CertPEM())
	addresses := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.2.15"), netip.MustParseAddr("10.96.0.1")}
	for name, spec := range map[string]pki.Spec{
		"api":   {CN: "kube-apiserver", Usage: pki.Server, IPs: addresses, DNS: []string{"localhost", "kubernetes"}},
		"admin": {CN: "admin", O: []string{"system:masters"}, Usage: pki.Client},
		"kcm":   {CN: "system:kube-controller-manager", Usage: pki.Client},
		"sched": {CN: "system:kube-scheduler", Usage: pki.Client},
	} {
		spec.TTL = validity
		leaf, err := ca.Issue(spec)
		if err != nil {
			return err
		}
		t.add("srv/pki/"+name+".crt", 0o644, leaf.CertPEM())
		t.add("srv/pki/"+name+".key", 0o600, leaf.KeyPEM())
		if spec.Usage == pki.Client {
			t.add("srv/pki/"+name+".kubeconfig", 0o600, fmt.Appendf(nil, kubeconfig, name))
		}
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	t.add("srv/pki/sa.key", 0o600, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	t.add("srv/pki/sa.pub", 0o644, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	return nil
}

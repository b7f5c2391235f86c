package main

import (
	"context"
	"encoding/pem"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/etcd"
	"github.com/orlop-os/orlop/orchestrator/kms"
	"github.com/orlop-os/orlop/orchestrator/kms/transittest"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// keyManaged is a control-plane machine with an API server that can use a key manager.
type keyManaged struct {
	machine
	t           *testing.T
	spec        nodespec.Spec
	authorities credentials.Authorities
	admin       kubernetes.Interface
	zero        time.Time
}

// configure writes the configuration of the encryption as machined does: manager is the key
// manager, or nil. The API server reads the files at its next start.
func (k *keyManaged) configure(manager *config.KMS) {
	k.t.Helper()
	k.spec.Kubernetes.APIServer.KMS, k.authorities.KMS.KMS = manager, manager
	want, err := credentials.Plan(k.spec, k.authorities)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, f := range want.Files {
		if name := filepath.Base(f.Path); name == nodespec.Encryption || name == nodespec.KMSFile {
			write(k.t, filepath.Join(k.root, f.Path), []byte(strings.ReplaceAll(string(f.Content), "unix://"+paths.KubeAPI, "unix://"+k.dirs.API)))
		}
	}
	k.writeSpec(k.t, k.spec)
}

// start starts etcd and the API server.
func (k *keyManaged) start() *started {
	k.t.Helper()
	api := k.machine.start(k.t, component.API, k.zero)
	names := []string{"etcd", "kube-apiserver", "bootstrap"}
	if k.spec.Kubernetes.APIServer.KMS != nil {
		names = append(names, kms.Name)
	}
	api.waitReady(k.t, time.Minute, names...)
	return api
}

// reencrypt runs the command that re-encrypts Secrets, and returns its result.
func (k *keyManaged) reencrypt(ctx context.Context, request string) nodespec.ReencryptResult {
	k.t.Helper()
	answer, err := etcd.Commands["reencrypt-secrets"](ctx, k.spec, k.dirs, strings.NewReader(request))
	if err != nil {
		k.t.Fatal(err)
	}
	return answer.(nodespec.ReencryptResult)
}

// stored checks that the value of a Secret in etcd has the prefix, and is not readable.
func (k *keyManaged) stored(ctx context.Context, name, prefix string) {
	k.t.Helper()
	got, err := etcdClient(k.t, k.dirs).Get(ctx, "/registry/secrets/default/"+name)
	if err != nil || len(got.Kvs) != 1 {
		k.t.Fatalf("%s: %v, %v", name, got, err)
	}
	if value := string(got.Kvs[0].Value); !strings.HasPrefix(value, prefix) || strings.Contains(value, "sesame") {
		k.t.Errorf("%s is stored as %.60q, want the prefix %q", name, value, prefix)
	}
}

func (k *keyManaged) create(ctx context.Context, name string) {
	k.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"word": "sesame"}}
	if _, err := k.admin.CoreV1().Secrets("default").Create(ctx, s, metav1.CreateOptions{}); err != nil {
		k.t.Fatal(err)
	}
}

func (k *keyManaged) read(ctx context.Context, name string) error {
	_, err := k.admin.CoreV1().Secrets("default").Get(ctx, name, metav1.GetOptions{})
	return err
}

// waitFor waits until good returns true. condition describes the expected state.
func (k *keyManaged) waitFor(ctx context.Context, condition string, good func(context.Context) bool) {
	k.t.Helper()
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 90*time.Second, true, func(ctx context.Context) (bool, error) { return good(ctx), nil })
	if err != nil {
		k.t.Fatalf("waiting until %s: %v", condition, err)
	}
}

// detail returns the present detail of the component.
func (p *started) detail(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.states[name].Detail
}

// TestKMS moves the Secrets of a control plane from a key in the configuration to a key manager,
// and back. In between, the key of the key manager is rotated, and the API server starts while the
// key manager is unavailable.
func TestKMS(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	spec := testSpec()
	network(t, spec.Node.IPs[0].String()+"/24")
	vault := transittest.New("role-1", "hunter2-secret-id")
	server := httptest.NewTLSServer(vault)
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseUint(at.Port(), 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	k := &keyManaged{machine: prepare(t, spec), t: t, spec: spec, authorities: authorities(t), zero: time.Now()}
	k.authorities.KMS.SiteCAs = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	k.admin = k.client(t, "admin", "orlop:cluster-admins")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	manager := func(encrypt bool) *config.KMS {
		return &config.KMS{Encrypt: encrypt, Transit: &config.Transit{
			Endpoint: config.Endpoint{Host: "127.0.0.1", Port: uint16(port)}, Mount: "transit", Key: "orlop",
			AppRole: &config.AppRole{Mount: "approle", RoleID: "role-1", SecretID: config.NewSecret("hunter2-secret-id")},
		}}
	}
	byKey, byManager := "k8s:enc:secretbox:v1:", "k8s:enc:kms:v2:"+manager(true).Name()+":"

	// from the key to the key manager
	k.configure(manager(false))
	api := k.start()
	k.create(ctx, "first")
	k.stored(ctx, "first", byKey)
	stopAll(t, api)
	k.configure(manager(true))
	api = k.start()
	k.create(ctx, "second")
	k.stored(ctx, "second", byManager)
	if got := k.reencrypt(ctx, `{"count": true}`); got.Reencrypted == 0 || got.Reencrypted == got.Secrets {
		t.Errorf("the count of Secrets to re-encrypt is %+v, want some but not all", got)
	}
	k.stored(ctx, "first", byKey)
	k.reencrypt(ctx, `{}`)
	k.stored(ctx, "first", byManager)

	// another version of the key
	vault.Rotate()
	k.waitFor(ctx, "the API server uses the other version", func(context.Context) bool { return strings.HasSuffix(api.detail(kms.Name), "version v2") })
	if got := k.reencrypt(ctx, `{}`); got.Reencrypted != got.Secrets || got.Secrets < 2 {
		t.Errorf("re-encrypted %+v", got)
	}
	if got := k.reencrypt(ctx, `{"count": true}`); got.Reencrypted != 0 {
		t.Errorf("after the re-encryption: %+v", got)
	}
	stopAll(t, api)

	// the key manager is unavailable at the start
	vault.Seal(true)
	api = k.start()
	if got := api.detail(kms.Name); !strings.HasPrefix(got, nodespec.ProblemPrefix+server.URL+", key transit/orlop: ") || !strings.Contains(got, "Vault is sealed; unseal the server") {
		t.Errorf("the component reports %q", got)
	}
	if err := k.read(ctx, "first"); err == nil {
		t.Error("a Secret is readable without the key manager")
	}
	if _, err := k.admin.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("other objects cannot be written without the key manager: %v", err)
	}
	if _, err := etcd.Commands["reencrypt-secrets"](ctx, k.spec, k.dirs, strings.NewReader(`{}`)); err == nil || !strings.Contains(err.Error(), "the key manager: cannot encrypt: cannot log in: it answers 503") {
		t.Errorf("re-encryption without the key manager: %v", err)
	}
	vault.Seal(false)
	k.waitFor(ctx, "the Secret is readable again", func(ctx context.Context) bool { return k.read(ctx, "first") == nil })
	stopAll(t, api)

	// back to the key
	k.configure(manager(false))
	api = k.start()
	k.reencrypt(ctx, `{}`)
	k.stored(ctx, "first", byKey)
	k.stored(ctx, "second", byKey)
	stopAll(t, api)
	k.configure(nil)
	vault.Seal(true)
	api = k.start()
	for _, name := range []string{"first", "second"} {
		if err := k.read(ctx, name); err != nil {
			t.Errorf("Secret %s is not readable without the key manager: %v", name, err)
		}
	}
	stopAll(t, api)
	api.logHasNoSecrets(t, map[string][]string{"the credentials of the key manager": {"hunter2-secret-id"}})
}

package component

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Env is the environment of the components of a process.
type Env struct {
	// Dir is the directory of the process, which contains the kubeconfigs of its components.
	Dir  string
	Spec nodespec.Spec
	Dirs dirs.Dirs
	// Rights waits until the API server grants the components their rights, or returns ctx's error.
	Rights   func(ctx context.Context) error
	Announce Announce
	Nodes    *Nodes // of the process
}

// Config returns the client configuration in the kubeconfig of a component.
func (e Env) Config(name string) (*rest.Config, error) {
	return LoadConfig(KubeconfigPath(e.Dir, name))
}

// Client returns a client with the kubeconfig of a component.
func (e Env) Client(name string) (kubernetes.Interface, error) {
	config, err := e.Config(name)
	if err != nil {
		return nil, err
	}
	return NewClient(config)
}

// WaitConfig announces that the component waits for the API server, waits until the component has
// its rights, and returns Config. It returns nil without an error if ctx ends first.
func (e Env) WaitConfig(ctx context.Context, name string) (*rest.Config, error) {
	e.Announce(name, false, "waiting for the API server")
	if err := e.Rights(ctx); err != nil {
		return nil, nil // stopped before the component began
	}
	return e.Config(name)
}

// AnnounceReady returns a function that announces a component as ready with a detail.
func (e Env) AnnounceReady(name string) func(detail string) {
	return func(detail string) { e.Announce(name, true, detail) }
}

// KubeconfigPath returns the path of a component's kubeconfig in the directory of its process.
func KubeconfigPath(dir, name string) string { return filepath.Join(dir, name+".kubeconfig") }

// LoadConfig returns the client configuration in a kubeconfig.
func LoadConfig(path string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot use: %w", path, err)
	}
	return config, nil
}

// NewClient returns a client of the built-in kinds.
func NewClient(config *rest.Config) (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	return client, nil
}

// GroupClient returns a client of a group's kinds; scheme contains the kinds. The client uses JSON,
// because the kinds have no protocol buffers.
func GroupClient(config *rest.Config, scheme *runtime.Scheme, group schema.GroupVersion) (rest.Interface, error) {
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = "/apis", &group
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, ""
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot make client: %w", group.Group, err)
	}
	return client, nil
}

// KubeletClient returns a client of the server in config with the identity of the kubelet. Only the
// kubelet may change its Node and read the Lease of its Node. timeout bounds a request.
func KubeletClient(config *rest.Config, dirs dirs.Dirs, timeout time.Duration) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.CertFile, config.KeyFile = filepath.Join(dirs.Node, nodespec.KubeletCert), filepath.Join(dirs.Node, nodespec.KubeletKey)
	config.Timeout = timeout
	return NewClient(config)
}

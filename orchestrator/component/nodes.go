package component

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Nodes is an informer of all Nodes that the components of a process share. So the API server sends
// each change of a Node only once to a process. The objects lack the managed fields and the list of
// images, and no component may change the objects. Nodes is a Factory: the first component that
// starts it starts the informer, which runs until the process ends.
type Nodes struct {
	ctx   context.Context                            // of the process
	typed func() (coreinformers.NodeInformer, error) // makes the informer at its first call
	begin sync.Once

	mu       sync.Mutex
	onErrors []func(error)
}

// NewNodes returns the informer of a process. ctx is the context of the process. NewNodes calls
// client at the first use of the informer.
func NewNodes(ctx context.Context, client func() (kubernetes.Interface, error)) *Nodes {
	n := &Nodes{ctx: ctx}
	n.typed = sync.OnceValues(func() (coreinformers.NodeInformer, error) { return n.make(client) })
	return n
}

// NodesOf returns an informer that uses a given client.
func NodesOf(ctx context.Context, client kubernetes.Interface) *Nodes {
	return NewNodes(ctx, func() (kubernetes.Interface, error) { return client, nil })
}

// NodesClient returns a function that makes a client with a kubeconfig. The client receives
// protocol buffers, because their decoding takes half of the time of JSON.
func NodesClient(kubeconfig string) func() (kubernetes.Interface, error) {
	return func() (kubernetes.Interface, error) {
		config, err := LoadConfig(kubeconfig)
		if err != nil {
			return nil, err
		}
		config.ContentType = runtime.ContentTypeProtobuf
		return NewClient(config)
	}
}

// Typed returns the informer for upstream's controllers.
func (n *Nodes) Typed() (coreinformers.NodeInformer, error) { return n.typed() }

// Informer returns the informer.
func (n *Nodes) Informer() (cache.SharedIndexInformer, error) {
	typed, err := n.Typed()
	if err != nil {
		return nil, err
	}
	return typed.Informer(), nil
}

func (n *Nodes) make(newClient func() (kubernetes.Interface, error)) (coreinformers.NodeInformer, error) {
	client, err := newClient()
	if err != nil {
		return nil, fmt.Errorf("Nodes: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trimNode))
	typed := factory.Core().V1().Nodes()
	return typed, typed.Informer().SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, report := range n.onErrors {
			report(err)
		}
	})
}

// OnError calls report with each error of a list or a watch. report must not block.
func (n *Nodes) OnError(report func(error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.onErrors = append(n.onErrors, report)
}

// Start implements Factory. The informer does not end with the component that calls Start.
func (n *Nodes) Start(<-chan struct{}) {
	if informer, err := n.Informer(); err == nil {
		n.begin.Do(func() { go informer.RunWithContext(n.ctx) })
	}
}

// Shutdown implements Factory. It does nothing: other components use the informer.
func (n *Nodes) Shutdown() {}

// trimNode removes the large fields of a Node that no component uses.
func trimNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		node.ManagedFields, node.Status.Images = nil, nil
	}
	return object, nil
}

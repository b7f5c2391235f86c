package machineobject

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// objects is a client for OrlopMachine objects.
type objects struct {
	client rest.Interface
}

// newObjects returns a client with this configuration.
func newObjects(config *rest.Config) (objects, error) {
	scheme := runtime.NewScheme()
	if err := machineapi.AddToScheme(scheme); err != nil {
		return objects{}, fmt.Errorf("machine objects: %w", err)
	}
	client, err := component.GroupClient(config, scheme, machineapi.GroupVersion)
	if err != nil {
		return objects{}, err
	}
	return objects{client}, nil
}

// informer returns an informer that watches only the OrlopMachine with this name.
func (o objects) informer(name string) cache.SharedIndexInformer {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, name)
	list := cache.NewListWatchFromClient(o.client, machineapi.OrlopMachines.Resource, machineapi.Namespace, only)
	return cache.NewSharedIndexInformer(list, &machineapi.OrlopMachine{}, 0, cache.Indexers{})
}

// requestTimeout is the deadline of a request.
const requestTimeout = 10 * time.Second

// writeStatus writes the status of an object. It fails with a conflict if the object has changed
// since the client has read it.
func (o objects) writeStatus(ctx context.Context, m *machineapi.OrlopMachine) error {
	return o.client.Put().Namespace(m.Namespace).Resource(machineapi.OrlopMachines.Resource).Name(m.Name).SubResource("status").
		Timeout(requestTimeout).Body(m).Do(ctx).Error()
}

// Package breakglass suspends an object that prevents the API from working, and resumes it later,
// at the request of an admin (Cluster.Suspend, Cluster.Resume). It runs in a separate process, with
// a certificate that machined issues for this call. Neither webhooks nor policies apply to its
// requests (kubeapiserver/thirdparty.go). machined stores the objects that this process has read.
package breakglass

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// callTimeout bounds a request to the API server.
const callTimeout = 20 * time.Second

// Client returns a client of this machine's API server with the certificate of the request.
func Client(dirs dirs.Dirs, o nodespec.SuspendRequest) (dynamic.Interface, error) {
	server := kubeconfig.Local()
	client, err := dynamic.NewForConfig(&rest.Config{
		Host: server.URL, Timeout: callTimeout, UserAgent: "orlop-break-glass",
		TLSClientConfig: rest.TLSClientConfig{ServerName: server.Name, CAFile: filepath.Join(dirs.API, nodespec.CA), CertData: o.Cert, KeyData: o.Key},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot create client: %w", err)
	}
	return client, nil
}

// Run performs the action of the request.
func Run(ctx context.Context, client dynamic.Interface, o nodespec.SuspendRequest) (nodespec.SuspendResult, error) {
	kind, known := nodespec.FindSuspendKind(o.Kind)
	if !known {
		return nodespec.SuspendResult{}, fmt.Errorf("%s: cannot be suspended: no such kind", o.Kind)
	}
	all := client.Resource(schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: kind.Resource})
	var object *unstructured.Unstructured
	var err error
	switch o.Action {
	case nodespec.SuspendRead:
		if object, err = all.Get(ctx, o.Name, metav1.GetOptions{}); err == nil {
			err = checkSuspendable(kind, object)
		}
	case nodespec.SuspendRemove:
		return nodespec.SuspendResult{UID: o.UID}, remove(ctx, all, kind, o)
	case nodespec.SuspendRestore:
		object, err = restore(ctx, all, kind, o)
	default:
		err = fmt.Errorf("%q: no such action", o.Action)
	}
	if err != nil {
		return nodespec.SuspendResult{}, err
	}
	text, err := object.MarshalJSON()
	if err != nil {
		return nodespec.SuspendResult{}, fmt.Errorf("%s %s: cannot encode: %w", kind.Name, o.Name, err)
	}
	return nodespec.SuspendResult{UID: string(object.GetUID()), Object: text}, nil
}

// checkSuspendable rejects objects of the system, and objects without a webhook or service to
// remove.
func checkSuspendable(kind nodespec.SuspendKind, object *unstructured.Unstructured) error {
	switch kind.Name {
	case "apiservice":
		service, _, _ := unstructured.NestedStringMap(object.Object, "spec", "service")
		name, _, _ := unstructured.NestedString(object.Object, "spec", "service", "name")
		namespace, _, _ := unstructured.NestedString(object.Object, "spec", "service", "namespace")
		if service == nil && name == "" {
			return fmt.Errorf("apiservice %s: cannot be suspended: the API server serves it itself", object.GetName())
		}
		if name == bootstrap.MetricsService && namespace == metav1.NamespaceSystem {
			return fmt.Errorf("apiservice %s: cannot be suspended: it belongs to the system; `orlopctl logs orchestrator-controllers` says why it does not answer", object.GetName())
		}
	case "flowschema", "prioritylevelconfiguration":
		if object.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey] == "true" {
			return fmt.Errorf("%s %s: cannot be suspended: Kubernetes itself sets its content, and would create it again at once", kind.Name, object.GetName())
		}
	case nodespec.DefinitionKind:
		if strategy, _, _ := unstructured.NestedString(object.Object, "spec", "conversion", "strategy"); strategy != "Webhook" {
			return fmt.Errorf("customresourcedefinition %s: cannot be suspended: no webhook converts its objects", object.GetName())
		}
	}
	return nil
}

// remove deletes the object. From a CustomResourceDefinition it removes only the conversion
// webhook; the objects of the kind stay in their stored version.
func remove(ctx context.Context, all dynamic.ResourceInterface, kind nodespec.SuspendKind, o nodespec.SuspendRequest) error {
	if kind.Name == nodespec.DefinitionKind {
		return patchConversion(ctx, all, o.Name, o.UID, map[string]any{"strategy": "None", "webhook": nil})
	}
	uid := types.UID(o.UID)
	err := all.Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) {
		return nil // already gone
	}
	return err
}

// restore creates the object again, or sets the conversion webhook of the definition again.
func restore(ctx context.Context, all dynamic.ResourceInterface, kind nodespec.SuspendKind, o nodespec.SuspendRequest) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(o.Object, &object.Object); err != nil {
		return nil, fmt.Errorf("%s %s: cannot decode the stored copy: %w", kind.Name, o.Name, err)
	}
	if kind.Name == nodespec.DefinitionKind {
		conversion, has, err := unstructured.NestedMap(object.Object, "spec", "conversion")
		if err != nil || !has {
			return nil, errors.Join(fmt.Errorf("%s %s: the stored copy has no converter", kind.Name, o.Name), err)
		}
		// A definition that was deleted and created again has another UID, so the patch fails. The
		// webhook of that definition is the concern of the client that created it.
		if err := patchConversion(ctx, all, o.Name, string(object.GetUID()), conversion); err != nil {
			return nil, err
		}
		return object, nil
	}
	made, err := all.Create(ctx, withoutServerFields(object), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("%s %s: cannot be restored: another object has this name; delete that object, or the stored copy with --discard", kind.Name, o.Name)
	}
	return made, err
}

// withoutServerFields returns an object without the fields that the server has set.
func withoutServerFields(object *unstructured.Unstructured) *unstructured.Unstructured {
	out := object.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(out.Object, "status")
	return out
}

func patchConversion(ctx context.Context, all dynamic.ResourceInterface, name, uid string, conversion map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "spec": map[string]any{"conversion": conversion}})
	if err != nil {
		return fmt.Errorf("customresourcedefinition %s: cannot encode: %w", name, err)
	}
	_, err = all.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

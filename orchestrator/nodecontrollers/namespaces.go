package nodecontrollers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Namespaces is the name of the component that creates two objects in every namespace: the service
// account "default" and the ConfigMap with the CA of the API server. The API server rejects a pod
// without the service account, and a pod does not start without the CA.
const Namespaces = "namespaces"

// NamespacesComponent describes the component without its Run function.
func NamespacesComponent(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return describe(Namespaces, spec, dirs)
}

// RunNamespaces creates these objects until ctx is done. It announces that it is ready when both
// objects exist in the namespace "default".
func RunNamespaces(ctx context.Context, env component.Env) error {
	authority, err := os.ReadFile(filepath.Join(env.Dirs.Controllers, nodespec.CA))
	if err != nil {
		return fmt.Errorf("the API server's CA: %w", err)
	}
	who, err := begin(ctx, env, Namespaces)
	if who == nil {
		return err
	}
	env.Announce(Namespaces, false, "making the service account and the CA's ConfigMap of the namespace default")

	// Each controller needs only the objects of a single name, so its cache holds only these
	// objects.
	called := func(name string) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(who.root, 0, component.Only(metav1.ObjectNameField, name))
	}
	namespaces := informers.NewSharedInformerFactory(who.root, 0)
	accounts, authorities := called("default"), called(rootcacertpublisher.RootCACertConfigMapName)
	present := make(chan struct{}, 2)
	for _, i := range []cache.SharedIndexInformer{accounts.Core().V1().ServiceAccounts().Informer(), authorities.Core().V1().ConfigMaps().Informer()} {
		seen := sync.OnceFunc(func() { present <- struct{}{} })
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
			if m, ok := o.(metav1.Object); ok && m.GetNamespace() == metav1.NamespaceDefault {
				seen()
			}
		}}); err != nil {
			return fmt.Errorf("cannot watch: %w", err)
		}
	}

	accountsClient := who.of(ctx, "service-account-controller")
	authoritiesClient := who.of(ctx, "root-ca-cert-publisher")
	if accountsClient == nil || authoritiesClient == nil {
		return nil
	}
	account, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx), accounts.Core().V1().ServiceAccounts(),
		namespaces.Core().V1().Namespaces(), accountsClient, serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return fmt.Errorf("cannot make the controller of service accounts: %w", err)
	}
	publisher, err := rootcacertpublisher.NewPublisher(authorities.Core().V1().ConfigMaps(), namespaces.Core().V1().Namespaces(),
		authoritiesClient, authority)
	if err != nil {
		return fmt.Errorf("cannot make the publisher of the CA: %w", err)
	}
	for _, f := range []informers.SharedInformerFactory{namespaces, accounts, authorities} {
		f.Start(ctx.Done())
	}
	go func() {
		for range cap(present) {
			select {
			case <-present:
			case <-ctx.Done():
				return
			}
		}
		env.Announce(Namespaces, true, "")
	}()
	var running sync.WaitGroup
	running.Go(func() { account.Run(ctx, 1) })
	running.Go(func() { publisher.Run(ctx, 1) })
	running.Wait()
	return nil
}

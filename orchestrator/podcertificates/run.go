package podcertificates

import (
	"context"
	"fmt"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "pod-certificates"

const (
	// retryInterval is the delay after a failure. timeout bounds the requests of an answer or of a
	// reconciliation.
	retryInterval = 2 * time.Second
	timeout       = 10 * time.Second
	// resyncPeriod is the period of the checks whether a CA needs a successor and whether the
	// published bundle is correct.
	resyncPeriod = 5 * time.Minute
)

// secretKey is the key of the CAs in the data of their Secret.
const secretKey = "authorities.pem"

// Components describes the signer without its Run function. The list is empty if the configuration
// disables pod certificates.
func Components(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	if !spec.PodCertificates {
		return nil
	}
	return []component.Component{kubeconfig.ControllersComponent(spec, dirs, Name, nodespec.ControllersCert, nodespec.ControllersKey)}
}

// Run answers requests for certificates until ctx is done.
func Run(ctx context.Context, env component.Env) error {
	own, acting, err := nodecontrollers.ControllerClient(ctx, env, Name, bootstrap.PodCertificatesAccount)
	if own == nil {
		return err
	}
	env.Announce(Name, false, "waiting for the API server to serve "+certificates.SchemeGroupVersion.String())
	return newSigner(env.Spec.Cluster, own, acting).run(ctx, env.AnnounceReady(Name))
}

// signer answers the requests for the signer name bootstrap.PodSigner.
type signer struct {
	cluster  string
	client   kubernetes.Interface
	factory  informers.SharedInformerFactory
	requests cache.SharedIndexInformer
	changed  cell.Signal
	now      func() time.Time

	known        Authorities
	reconciledAt time.Time // the time of the last reconcile
}

func newSigner(cluster string, own, acting kubernetes.Interface) *signer {
	factory := informers.NewSharedInformerFactoryWithOptions(own, 0, component.Only("spec.signerName", bootstrap.PodSigner))
	return &signer{
		cluster: cluster, client: acting, factory: factory, requests: factory.Certificates().V1().PodCertificateRequests().Informer(),
		changed: cell.NewSignal(), now: time.Now,
	}
}

func (s *signer) run(ctx context.Context, tell func(detail string)) error {
	return component.Reconciler{
		Changed: s.changed, Period: resyncPeriod, RetryInterval: retryInterval, Pass: s.pass, Report: tell,
		Factories: []component.Factory{s.factory}, Watched: []component.Watched{{Informer: s.requests, IgnoreDeletes: true}},
	}.Run(ctx)
}

// pass answers every open request and returns a status text. A failed request does not block the
// other requests; pass returns the first error.
func (s *signer) pass(ctx context.Context) (string, error) {
	now := s.now()
	if since := now.Sub(s.reconciledAt); since >= resyncPeriod || since < 0 || len(s.known) == 0 {
		if err := s.reconcile(ctx, now); err != nil {
			return "", err
		}
		s.reconciledAt = now
	}
	var first error
	for _, o := range s.requests.GetStore().List() {
		r, ok := o.(*certificates.PodCertificateRequest)
		if !ok || r.Spec.SignerName != bootstrap.PodSigner || answered(r) {
			continue
		}
		// Each request gets the current time. A long list takes time, and the API server rejects a
		// certificate if its validity began more than five minutes ago.
		if err := s.answer(ctx, r, s.now()); err != nil && first == nil {
			first = fmt.Errorf("pod %s/%s: %w", r.Namespace, r.Spec.PodName, err)
		}
	}
	if first != nil {
		return "", first
	}
	return fmt.Sprintf("signs as %s for spiffe://%s, until %s", bootstrap.PodSigner, s.cluster, s.known[len(s.known)-1].Cert.NotAfter.UTC().Format(time.DateOnly)), nil
}

// answer answers a request by writing its status. If the request has changed or is deleted
// meanwhile, answer returns nil.
func (s *signer) answer(ctx context.Context, r *certificates.PodCertificateRequest, now time.Time) error {
	status, err := answer(s.known.Issuing(now), s.cluster, r, now)
	if err != nil {
		return err
	}
	r = r.DeepCopy()
	r.Status = status
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err = s.client.CertificatesV1().PodCertificateRequests(r.Namespace).UpdateStatus(ctx, r, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the watch reports the change
	}
	return err
}

// reconcile reads the CAs from their Secret, creates a successor if necessary, and publishes the
// bundle.
func (s *signer) reconcile(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	secrets := s.client.CoreV1().Secrets(metav1.NamespaceSystem)
	have, err := secrets.Get(ctx, bootstrap.PodAuthorities, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("Secret %s: cannot read: %w", bootstrap.PodAuthorities, err)
	}
	var all Authorities
	if !missing {
		if all, err = parse(have.Data[secretKey]); err != nil {
			return fmt.Errorf("Secret kube-system/%s: cannot use: %w; delete it to create a new CA, which invalidates the certificates of all pods", bootstrap.PodAuthorities, err)
		}
	}
	next, changed, err := all.Next(s.cluster, now)
	if err != nil {
		return err
	}
	if changed {
		want := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bootstrap.PodAuthorities, Namespace: metav1.NamespaceSystem}, Data: map[string][]byte{secretKey: next.encode()}}
		if missing {
			_, err = secrets.Create(ctx, want, metav1.CreateOptions{})
		} else {
			want.ResourceVersion = have.ResourceVersion
			_, err = secrets.Update(ctx, want, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("Secret %s: cannot write: %w", bootstrap.PodAuthorities, err)
		}
	}
	if err := s.publish(ctx, string(next.Bundle())); err != nil {
		return fmt.Errorf("ClusterTrustBundle %s: cannot write: %w", bootstrap.PodTrust, err)
	}
	s.known = next
	return nil
}

// publish writes the bundle of the CAs that pods have to trust to the ClusterTrustBundle, if it
// differs.
func (s *signer) publish(ctx context.Context, bundle string) error {
	bundles := s.client.CertificatesV1().ClusterTrustBundles()
	want := &certificates.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: bootstrap.PodTrust},
		Spec:       certificates.ClusterTrustBundleSpec{SignerName: bootstrap.PodSigner, TrustBundle: bundle},
	}
	have, err := bundles.Get(ctx, bootstrap.PodTrust, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = bundles.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && have.Spec != want.Spec:
		want.ResourceVersion = have.ResourceVersion
		_, err = bundles.Update(ctx, want, metav1.UpdateOptions{})
	}
	return err
}

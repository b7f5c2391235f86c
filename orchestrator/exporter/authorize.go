package exporter

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// reviewTimeout bounds each call to the API server; metricsd waits for both calls.
const reviewTimeout = 5 * time.Second

// authorizer checks whether a token may read the metrics (nodespec.AuthorizeMetrics).
type authorizer struct {
	connect func() (kubernetes.Interface, error)
}

// connector returns a function that makes a client with the identity of the kubelet at its first
// success, and returns the same client from then on. A client cannot be made earlier, because the
// kubeconfig of the kubelet is written after the start of the process.
func connector(dirs dirs.Dirs) func() (kubernetes.Interface, error) {
	var mu sync.Mutex
	var client kubernetes.Interface
	return func() (kubernetes.Interface, error) {
		mu.Lock()
		defer mu.Unlock()
		if client != nil {
			return client, nil
		}
		config, err := component.LoadConfig(component.KubeconfigPath(dirs.Node, kubelet.Name))
		if err != nil {
			return nil, err
		}
		config.Timeout = reviewTimeout
		made, err := component.NewClient(config)
		if err == nil {
			client = made
		}
		return client, err
	}
}

// ServeHTTP implements http.Handler.
func (a *authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found || token == "" {
		http.Error(w, "no token", http.StatusUnauthorized)
		return
	}
	status, err := a.review(r.Context(), token)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(status)
}

// review returns the status for a token. The token must be for the API server, like the tokens of
// pods; a token for another audience is not valid.
func (a *authorizer) review(ctx context.Context, token string) (status int, err error) {
	client, err := a.connect()
	if err != nil {
		return 0, err
	}
	tokenReview, err := client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	if !tokenReview.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := tokenReview.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	accessReview, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: nodespec.MetricsResource, Verb: "get"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	if !accessReview.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusNoContent, nil
}

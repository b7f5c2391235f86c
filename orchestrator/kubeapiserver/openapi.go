package kubeapiserver

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	openapi "k8s.io/kube-openapi/pkg/common"
)

// The paths of OpenAPI documents, as upstream serves them.
const (
	openAPIPrefix = "/openapi/"
	openAPIV2     = "/openapi/v2"
	openAPIV3     = "/openapi/v3"
)

// documents are the OpenAPI documents of Kubernetes' own API groups. Upstream makes them before it serves the first
// request, which is a fifth of the server's start and some 30 MiB, though only tools for people read them (kubectl apply
// and explain). Here they are made when a client first asks for one. Custom resources and aggregated APIs have theirs from
// upstream, which merges all.
//
// The server itself asks for the list of documents every five seconds, for mutating admission policies (upstream's
// patch.typeConverterManager). That counts only when there is a policy: see watchPolicies.
type documents struct {
	v2 *openapi.Config
	v3 *openapi.OpenAPIV3Config

	asked atomic.Bool
	make  sync.Once
	core  *genericapiserver.GenericAPIServer
	mux   *mux.PathRecorderMux // serves the documents once they are made
	whole atomic.Bool          // the aggregator knows of all of them
}

// none is what the aggregator learns until a client has asked: an OpenAPI v3 root document without groups. It asks again
// every second.
const none = `{"paths":{}}`

// lookAgain is between two looks at whether the aggregator has learned of the documents.
const lookAgain = 50 * time.Millisecond

// attach serves the documents at the core server, which the aggregator asks.
func (d *documents) attach(core *genericapiserver.GenericAPIServer) {
	d.core = core
	core.Handler.NonGoRestfulMux.Handle(openAPIV2, d)
	core.Handler.NonGoRestfulMux.Handle(openAPIV3, d)
	core.Handler.NonGoRestfulMux.HandlePrefix(openAPIV3+"/", d)
}

// ServeHTTP answers the aggregator and what it passes on. It asks for version 3 by itself, for version 2 on behalf of
// clients only.
func (d *documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !d.asked.Load() {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(none)) // the aggregator's buffer takes everything
		return
	}
	d.make.Do(func() {
		d.mux = mux.NewPathRecorderMux("openapi")
		served := routes.OpenAPI{Config: d.v2, V3Config: d.v3}
		served.InstallV2(d.core.Handler.GoRestfulContainer, d.mux)
		served.InstallV3(d.core.Handler.GoRestfulContainer, d.mux)
	})
	d.mux.ServeHTTP(w, r)
}

// front stands before the aggregator: a client who asks for a document waits until there are all.
func (d *documents) front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, openAPIPrefix) && !d.whole.Load() && !own(r) {
			d.asked.Store(true)
			if err := d.await(r.Context(), next); err != nil {
				w.Header().Set("Retry-After", "1")
				http.Error(w, "the OpenAPI documents are not made yet: "+err.Error()+"; ask again", http.StatusServiceUnavailable)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// own tells whether the server asks itself.
func own(r *http.Request) bool {
	who, ok := request.UserFrom(r.Context())
	return ok && who.GetName() == user.APIServerUser
}

// watchPolicies has the documents made as soon as a mutating admission policy is known.
func (d *documents) watchPolicies(shared informers.SharedInformerFactory) error {
	policies := shared.Admissionregistration().V1().MutatingAdmissionPolicies().Informer()
	_, err := policies.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { d.asked.Store(true) }})
	return err
}

// await asks the aggregator for its list of documents until the core group is in it.
func (d *documents) await(ctx context.Context, aggregator http.Handler) error {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		question, err := http.NewRequestWithContext(ctx, http.MethodGet, openAPIV3, nil)
		if err != nil {
			return err
		}
		list := responsewriter.NewInMemoryResponseWriter()
		aggregator.ServeHTTP(list, question)
		if list.RespCode() == http.StatusOK && bytes.Contains(list.Data(), []byte(`"api/v1"`)) {
			d.whole.Store(true)
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.New("the request's time is over")
		}
	}
}

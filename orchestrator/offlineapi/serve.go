package offlineapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// maxBody bounds the body of a request in bytes. Bodies are a pod's status or a token request.
const maxBody = 1 << 20

// tokenTTL is the validity of a placeholder token. After this time the kubelet requests another
// token, which may come from an API server.
const tokenTTL = time.Minute

// noToken is the placeholder in the token files of pods until an API server issues tokens.
const noToken = "there-is-no-api-server"

// confidential are the kinds that only the kubelet may read. An API server has the same
// restriction.
var confidential = []kind{secrets, configMaps, claims, volumes, csiDrivers, csiNodes, runtimeClasses}

// server answers requests from the store until ended is closed.
type server struct {
	store *store
	node  string
	ended <-chan struct{}
}

// kubeletUser returns the user name of a node's kubelet.
func kubeletUser(node string) string { return "system:node:" + node }

// user returns the common name of the client's certificate if the cluster's CA has signed the
// certificate and the name belongs to a component of this node. Otherwise it returns "".
func (s *server) user(state *tls.ConnectionState) string {
	if state == nil || len(state.VerifiedChains) == 0 {
		return ""
	}
	name := state.PeerCertificates[0].Subject.CommonName
	own := []string{kubeletUser(s.node), "system:kube-proxy", "orlop:coredns", nodespec.NodeAgentUser + s.node}
	if !slices.Contains(own, name) {
		return ""
	}
	return name
}

var requests = request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// ServeHTTP answers a request. The answer to an unknown request is 503 and never "not found",
// because a client might delete its own data for an object that is not found.
func (s *server) ServeHTTP(out http.ResponseWriter, in *http.Request) {
	switch in.URL.Path {
	case "/livez", "/readyz", "/healthz":
		// An API server permits every client to read its health. Here the success makes the
		// components start.
		_, _ = io.WriteString(out, "ok") // an error means that the client is gone
		return
	}
	select {
	case <-s.ended:
		// The client would take a list of this server for a complete list of the API server.
		reject(out, unavailable("has ended, because an API server is ready"))
		return
	default:
	}
	user := s.user(in.TLS)
	if user == "" {
		reject(out, apierrors.NewUnauthorized("only this node's components are permitted, by their certificates"))
		return
	}
	info, err := requests.NewRequestInfo(in)
	if err != nil {
		reject(out, apierrors.NewBadRequest(err.Error()))
		return
	}
	if err := s.answer(out, in, info, user); err != nil {
		reject(out, err)
	}
}

// unavailable returns the error for a request that only an API server can answer.
func unavailable(what string) error {
	return apierrors.NewServiceUnavailable("the offline API server " + what)
}

// answer answers a request of a component of this node, or returns an error for the client.
func (s *server) answer(out http.ResponseWriter, in *http.Request, info *request.RequestInfo, user string) error {
	kubelet := user == kubeletUser(s.node)
	key := types.NamespacedName{Namespace: info.Namespace, Name: info.Name}
	if !info.IsResourceRequest {
		return unavailable("does not know " + info.Path)
	}
	switch {
	case info.Resource == "serviceaccounts" && info.Subresource == "token" && info.Verb == "create" && kubelet:
		return token(out, in)
	case info.Resource == pods.resource && info.Subresource == "status" && info.Verb == "patch" && kubelet:
		patch, err := io.ReadAll(http.MaxBytesReader(out, in.Body, maxBody))
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if kind := in.Header.Get("Content-Type"); kind != string(types.StrategicMergePatchType) {
			return unavailable("does not accept " + kind)
		}
		pod, err := s.store.patchStatus(key, patch)
		if err != nil {
			return err
		}
		return write(out, pod)
	}
	i := slices.IndexFunc(kinds, func(k kind) bool {
		return k.resource == info.Resource && k.version == schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}.String()
	})
	if i < 0 || info.Subresource != "" || !slices.Contains([]string{"get", "list", "watch"}, info.Verb) {
		return unavailable(fmt.Sprintf("cannot %s %s", info.Verb, strings.TrimSuffix(info.Resource+"/"+info.Subresource, "/")))
	}
	k := kinds[i]
	if slices.Contains(confidential, k) && !kubelet {
		return apierrors.NewForbidden(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Name, errors.New("only the kubelet may read it"))
	}
	if info.Verb == "get" {
		o := s.store.get(k, key)
		if o == nil && s.store.absent(k, key) {
			return apierrors.NewNotFound(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Name)
		}
		if o == nil {
			return unavailable(fmt.Sprintf("does not know %s %s", k.name, key))
		}
		return write(out, o)
	}
	selected, err := selectionOf(k, in, info)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if info.Verb == "watch" {
		return s.stream(out, in, selected)
	}
	return s.list(out, selected)
}

// selectionOf returns the selection of a list or watch request. It returns an error for a field
// selector that the store does not support.
func selectionOf(k kind, in *http.Request, info *request.RequestInfo) (selection, error) {
	query := in.URL.Query()
	s := selection{kind: k, namespace: info.Namespace}
	var err error
	if s.labels, err = labels.Parse(query.Get("labelSelector")); err != nil {
		return s, err
	}
	if s.fields, err = fields.ParseSelector(query.Get("fieldSelector")); err != nil {
		return s, err
	}
	for _, r := range s.fields.Requirements() {
		if selectable[r.Field] == nil {
			return s, fmt.Errorf("field selector: %s is not supported", r.Field)
		}
	}
	return s, nil
}

// list answers with all selected objects. The kubelet lists single Secrets and ConfigMaps by name.
// If the record does not contain such an object, the object may exist nevertheless, so list returns
// an error and not an empty list.
func (s *server) list(out http.ResponseWriter, selected selection) error {
	found, version := s.store.list(selected)
	if name, one := selected.fields.RequiresExactMatch(metav1.ObjectNameField); one && len(found) == 0 {
		if key := (types.NamespacedName{Namespace: selected.namespace, Name: name}); !s.store.absent(selected.kind, key) {
			return unavailable(fmt.Sprintf("does not know %s %s", selected.kind.name, key))
		}
	}
	if found == nil {
		found = []Object{}
	}
	return write(out, map[string]any{
		"kind": selected.kind.name + "List", "apiVersion": selected.kind.version,
		"metadata": map[string]string{"resourceVersion": strconv.FormatInt(version, 10)}, "items": found,
	})
}

// stream sends changes until the client disconnects, the timeout of the request ends, or an API
// server is ready. When an API server is ready, the client gets the error that its resource version
// is too old. So the client lists all objects at the API server, and drops objects that do not
// exist any more.
func (s *server) stream(out http.ResponseWriter, in *http.Request, selected selection) error {
	query := in.URL.Query()
	if query.Get("sendInitialEvents") != "" {
		// after this error, the client makes a list request first
		return apierrors.NewInvalid(schema.GroupKind{Kind: selected.kind.name}, "", nil)
	}
	ctx := in.Context()
	if seconds, err := strconv.Atoi(query.Get("timeoutSeconds")); err == nil && seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
	}
	since, err := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	if err != nil {
		return apierrors.NewBadRequest("a watch needs a resourceVersion")
	}
	changes, err := s.store.watch(selected, since)
	if err != nil {
		return err
	}
	defer s.store.unwatch(changes)
	out.Header().Set("Content-Type", "application/json")
	to := json.NewEncoder(out)
	flush := http.NewResponseController(out).Flush
	over := statusOf(apierrors.NewResourceExpired("an API server is ready"))
	for err := flush(); err == nil; err = flush() {
		event := map[string]any{"type": "ERROR", "object": over}
		more := false
		select {
		case event["object"], more = <-changes.events:
			if !more {
				event["object"] = over
				break
			}
			event["type"] = "MODIFIED"
		case <-s.ended:
		case <-ctx.Done():
			return nil
		}
		if to.Encode(event) != nil {
			return nil // the client is gone
		}
		if !more {
			_ = flush() // the end of the handler flushes, too
			return nil
		}
	}
	return nil
}

// token answers the kubelet's request for a token of a pod with the placeholder noToken.
func token(out http.ResponseWriter, in *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(out, in.Body, maxBody))
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	asked, ok := object.(*authenticationv1.TokenRequest)
	if !ok {
		return apierrors.NewBadRequest("the body is not a TokenRequest")
	}
	seconds := int64(tokenTTL / time.Second)
	asked.TypeMeta = metav1.TypeMeta{Kind: "TokenRequest", APIVersion: authenticationv1.SchemeGroupVersion.String()}
	asked.Spec.ExpirationSeconds = &seconds
	asked.Status = authenticationv1.TokenRequestStatus{Token: noToken, ExpirationTimestamp: metav1.NewTime(time.Now().Add(tokenTTL))}
	return write(out, asked)
}

// write writes an answer as JSON.
func write(out http.ResponseWriter, answer any) error {
	content, err := json.Marshal(answer)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	out.Header().Set("Content-Type", "application/json")
	_, _ = out.Write(content) // an error means that the client is gone
	return nil
}

// statusOf returns an error as a Status object of the API.
func statusOf(err error) metav1.Status {
	status := apierrors.NewInternalError(err).Status()
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		status = known.Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return status
}

// reject answers a request with an error.
func reject(out http.ResponseWriter, why error) {
	status := statusOf(why)
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(int(status.Code))
	_ = json.NewEncoder(out).Encode(status) // an error means that the client is gone
}

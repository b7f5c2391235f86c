package metrics

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/common"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

const (
	// decisionTTL is how long the server caches an authorization decision of the API server. It is
	// the default for extension API servers.
	decisionTTL = 10 * time.Second
	// requestTimeout is the deadline of a request. It is short, because all responses come from
	// memory.
	requestTimeout = 5 * time.Second
)

// newServer returns a server of the two resources, and opens its port at the address. api is the
// configuration of the client that asks the API server to authorize requests.
func newServer(address netip.AddrPort, dirs dirs.Dirs, api *clientrest.Config, nodes, pods rest.Storage) (*genericapiserver.GenericAPIServer, error) {
	at := func(name string) string { return filepath.Join(dirs.Controllers, name) }
	scheme := runtime.NewScheme()
	install.Install(scheme)
	// the types of request options
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)

	config := genericapiserver.NewConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.EnableIndex, config.EnableProfiling, config.EnableMetrics = false, false, false
	config.RequestTimeout = requestTimeout
	// The server requires a client of itself, but does not use it.
	config.LoopbackClientConfig = api
	namer := openapi.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	config.OpenAPIConfig.Info.Title, config.OpenAPIV3Config.Info.Title = "Resource metrics", "Resource metrics"

	serving := options.NewSecureServingOptions()
	serving.BindAddress, serving.BindPort = address.Addr().AsSlice(), int(address.Port())
	serving.ServerCert.CertKey = options.CertKey{CertFile: at(nodespec.MetricsServing), KeyFile: at(nodespec.MetricsServingKey)}
	serving.MinTLSVersion, serving.CipherSuites = "VersionTLS12", component.StrongSuites()
	if err := serving.ApplyTo(&config.SecureServing); err != nil {
		return nil, fmt.Errorf("cannot serve on %v: %w", address, err)
	}
	if err := applyAccess(config, at(nodespec.FrontProxyCA), api); err != nil {
		return nil, err
	}
	server, err := config.Complete(nil).New(Name, genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("cannot assemble the server: %w", err)
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, scheme, metav1.ParameterCodec, codecs)
	group.VersionedResourcesStorageMap[v1beta1.SchemeGroupVersion.Version] = map[string]rest.Storage{"nodes": nodes, "pods": pods}
	if err := server.InstallAPIGroup(&group); err != nil {
		return nil, fmt.Errorf("cannot assemble the server: %w", err)
	}
	return server, nil
}

// definitions returns the OpenAPI definitions of the types of the metrics API and of apimachinery.
// The function of Kubernetes returns the definitions of all types of Kubernetes, which would stay
// in memory.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := generatedopenapi.GetOpenAPIDefinitions(ref)
	maps.DeleteFunc(all, func(name string, _ common.OpenAPIDefinition) bool {
		return !strings.HasPrefix(name, "io.k8s.apimachinery.") && !strings.HasPrefix(name, "io.k8s.metrics.pkg.apis.metrics.")
	})
	return all
}

// applyAccess configures authentication and authorization. The server accepts only the certificate
// of the aggregator. It asks the API server whether the user of each request is authorized. It
// rejects client certificates of the cluster, tokens and anonymous requests, also for health
// checks.
func applyAccess(config *genericapiserver.Config, frontProxyCA string, api *clientrest.Config) error {
	authority, err := dynamiccertificates.NewDynamicCAContentFromFile("front-proxy", frontProxyCA)
	if err != nil {
		return fmt.Errorf("cannot authenticate the aggregator: %w", err)
	}
	if err := config.Authentication.ApplyClientCert(authority, config.SecureServing); err != nil {
		return fmt.Errorf("cannot authenticate the aggregator: %w", err)
	}
	// These values are those of the flags --requestheader-... of the API server.
	proxy := &authenticatorfactory.RequestHeaderConfig{
		UsernameHeaders:     headerrequest.StaticStringSlice{"X-Remote-User"},
		UIDHeaders:          headerrequest.StaticStringSlice{"X-Remote-Uid"},
		GroupHeaders:        headerrequest.StaticStringSlice{"X-Remote-Group"},
		ExtraHeaderPrefixes: headerrequest.StaticStringSlice{"X-Remote-Extra-"},
		CAContentProvider:   authority,
		AllowedClientNames:  headerrequest.StaticStringSlice{"front-proxy-client"},
	}
	config.Authentication.RequestHeaderConfig = proxy
	if config.Authentication.Authenticator, _, err = (authenticatorfactory.DelegatingAuthenticatorConfig{RequestHeaderConfig: proxy}).New(); err != nil {
		return fmt.Errorf("cannot authenticate the aggregator: %w", err)
	}
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	config.Authorization.Authorizer, err = newAuthorizer(client.AuthorizationV1())
	return err
}

// newAuthorizer returns the authorizer of the requests. It allows all requests of the group
// system:masters without a question to the API server, as extension API servers of upstream do
// (DelegatingAuthorizationOptions). The aggregator uses this group for its own requests: discovery
// and the check of availability. They have a few seconds, and an API server under load may not
// answer the question in this time. Without discovery of all API groups, no namespace can end.
func newAuthorizer(client authorizationclient.AuthorizationV1Interface) (authorizer.Authorizer, error) {
	delegated, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client,
		AllowCacheTTL:             decisionTTL,
		DenyCacheTTL:              decisionTTL,
		WebhookRetryBackoff:       options.DefaultAuthWebhookRetryBackoff(),
	}.New()
	if err != nil {
		return nil, fmt.Errorf("cannot authorize requests at the API server: %w", err)
	}
	return union.New(
		union.NamedAuthorizer{AuthorizerName: "privileged", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
		union.NamedAuthorizer{AuthorizerName: "delegated", Authorizer: delegated},
	)
}

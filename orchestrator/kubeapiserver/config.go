package kubeapiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/google/uuid"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	enabledopenapi "k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	tokengetter "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/orlop-os/orlop/orchestrator/metrics"
)

// resync is the interval at which the server's own caches deliver every object to their users again
// (upstream's value).
const resync = 10 * time.Minute

// newConfig returns the configuration of the three servers of kube-apiserver: the core, the custom
// resources and the aggregator. It opens the listening socket. When the function etcd has returned,
// it opens the connections to etcd. The configuration does not contain the OpenAPI documents of the
// core; the caller attaches the returned documents to the core server. metricsAt are the addresses
// of the resource metrics API.
func newConfig(opts options.CompletedOptions, etcd func() error, revoked *revocations, metricsAt []netip.AddrPort) (*app.Config, *documents, error) {
	generic, shared, storage, err := genericConfig(opts, etcd, revoked)
	if err != nil {
		return nil, nil, err
	}
	core, resolver, admission, err := app.CreateKubeAPIServerConfig(opts, generic, shared, storage)
	if err != nil {
		return nil, nil, err
	}
	plane := core.ControlPlane
	hooks := webhook.NewDefaultAuthenticationInfoResolverWrapper(plane.ProxyTransport, plane.Generic.EgressSelector,
		plane.Generic.LoopbackClientConfig, plane.Generic.TracerProvider)
	custom, err := controlplaneapiserver.CreateAPIExtensionsConfig(*plane.Generic, plane.VersionedInformers, admission,
		opts.CompletedOptions, opts.MasterCount, resolver, hooks)
	if err != nil {
		return nil, nil, err
	}
	aggregator, err := controlplaneapiserver.CreateAggregatorConfig(*plane.Generic, opts.CompletedOptions,
		plane.VersionedInformers, metrics.LocalResolver(resolver, metricsAt), plane.ProxyTransport, plane.Extra.PeerProxy, admission)
	if err != nil {
		return nil, nil, err
	}
	// The aggregator and the custom resources have their own copies of the generic configuration.
	documents := &documents{v2: plane.Generic.OpenAPIConfig, v3: plane.Generic.OpenAPIV3Config}
	plane.Generic.SkipOpenAPIInstallation = true
	if err := documents.watchPolicies(plane.VersionedInformers); err != nil {
		return nil, nil, fmt.Errorf("OpenAPI: cannot watch policies: %w", err)
	}
	build := aggregator.GenericConfig.BuildHandlerChainFunc
	aggregator.GenericConfig.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return markImpersonation(revoked.track(build(documents.front(api), c)))
	}
	return &app.Config{Options: opts, KubeAPIs: core, ApiExtensions: custom, Aggregator: aggregator}, documents, nil
}

// genericConfig applies the options that all three servers share, in the order of their
// dependencies.
func genericConfig(opts options.CompletedOptions, etcd func() error, revoked *revocations) (*genericapiserver.Config, informers.SharedInformerFactory, *serverstorage.DefaultStorageFactory, error) {
	fail := func(what string, err error) (*genericapiserver.Config, informers.SharedInformerFactory, *serverstorage.DefaultStorageFactory, error) {
		return nil, nil, nil, fmt.Errorf("%s: %w", what, err)
	}
	config := genericapiserver.NewConfig(legacyscheme.Codecs)
	config.Flagz = opts.Flagz
	resources := controlplane.DefaultAPIResourceConfigSource()
	config.MergedResourceConfig = resources
	if err := opts.GenericServerRunOptions.ApplyTo(config); err != nil {
		return fail("general options", err)
	}
	if err := serve(opts, config); err != nil {
		return fail("serving", err)
	}
	client, err := kubernetes.NewForConfig(config.LoopbackClientConfig)
	if err != nil {
		return fail("loopback client", err)
	}
	shared := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(withoutManagedFields))
	if err := opts.Features.ApplyTo(config, client, shared); err != nil {
		return fail("features", err)
	}
	if err := opts.APIEnablement.ApplyTo(config, resources, legacyscheme.Scheme); err != nil {
		return fail("API groups", err)
	}
	if err := opts.EgressSelector.ApplyTo(config); err != nil {
		return fail("egress", err)
	}
	if err := opts.Traces.ApplyTo(config.EgressSelector, config); err != nil {
		return fail("tracing", err)
	}
	describe(config)
	if err := etcd(); err != nil {
		return fail("etcd", err)
	}
	storage, err := store(opts, config)
	if err != nil {
		return fail("storage", err)
	}
	if err := applyAccess(opts, config, client, shared); err != nil {
		return fail("access", err)
	}
	if err := revoked.watchNodes(client, shared.Core().V1().Nodes()); err != nil {
		return fail("nodes", err)
	}
	config.Authentication.Authenticator = recordImpersonator(revoked.wrapAuthenticator(config.Authentication.Authenticator))
	if err := opts.Audit.ApplyTo(config); err != nil {
		return fail("audit", err)
	}
	if config.AuditBackend != nil {
		chain, err := newAuditBackend(opts.Audit.LogOptions)
		if err != nil {
			return fail("audit", err)
		}
		config.AuditBackend = withoutQueries{chain}
	}
	config.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	return config, shared, storage, nil
}

// serve opens the port, and makes a client for requests of the server to itself. The client has a
// random bearer token, and a separate certificate of the server. The server presents this
// certificate only for a server name that no other client uses.
func serve(opts options.CompletedOptions, config *genericapiserver.Config) error {
	if err := opts.SecureServing.SecureServingOptions.ApplyTo(&config.SecureServing); err != nil {
		return err
	}
	cert, key, err := selfSigned(genericapiserver.LoopbackClientServerNameOverride)
	if err != nil {
		return err
	}
	own, err := dynamiccertificates.NewStaticSNICertKeyContent("loopback", cert, key, genericapiserver.LoopbackClientServerNameOverride)
	if err != nil {
		return err
	}
	serving := config.SecureServing
	serving.SNICerts = append([]dynamiccertificates.SNICertKeyContentProvider{own}, serving.SNICerts...)
	loopback, err := serving.NewLoopbackClientConfig(uuid.New().String(), cert)
	if err != nil {
		return err
	}
	loopback.ContentType = runtime.ContentTypeProtobuf
	loopback.DisableCompression = true
	config.LoopbackClientConfig = loopback
	return nil
}

// describe sets the OpenAPI definitions of the types, which server-side apply also needs, and the
// kinds of long-running requests.
func describe(config *genericapiserver.Config) {
	definitions := enabledopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapi.NewDefinitionNamer(legacyscheme.Scheme, extensions.Scheme, aggregatorscheme.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIConfig.Info.Title = "Kubernetes"
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	config.OpenAPIV3Config.Info.Title = "Kubernetes"
	config.LongRunningFunc = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
}

// store connects the server with etcd.
func store(opts options.CompletedOptions, config *genericapiserver.Config) (*serverstorage.DefaultStorageFactory, error) {
	transport := &opts.Etcd.StorageConfig.Transport
	if config.EgressSelector != nil {
		transport.EgressLookup = config.EgressSelector.Lookup
	}
	transport.TracerProvider = config.TracerProvider
	wanted := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(config.EffectiveVersion)
	wanted.APIResourceConfig = config.MergedResourceConfig
	wanted.DefaultResourceEncoding.SetEffectiveVersion(config.EffectiveVersion)
	storage, err := wanted.Complete(opts.Etcd).New()
	if err != nil {
		return nil, err
	}
	storage.StorageConfig.StorageObjectCountTracker = config.StorageObjectCountTracker
	if err := opts.Etcd.ApplyWithStorageFactoryTo(storage, config); err != nil {
		return nil, err
	}
	config.ReadyzChecks, config.HealthzChecks = withoutKMS(config.ReadyzChecks), withoutKMS(config.HealthzChecks)
	return storage, nil
}

// withoutKMS removes upstream's check of the key manager from the health of the server. Without the
// key manager, the server still serves all objects except Secrets, so a balancer should continue to
// use the server. The component kms reports the state of the key manager.
func withoutKMS(checks []healthz.HealthChecker) []healthz.HealthChecker {
	return slices.DeleteFunc(slices.Clone(checks), func(c healthz.HealthChecker) bool { return c.Name() == kmsCheck })
}

// kmsCheck is the name of upstream's check of the key manager (package encryptionconfig).
const kmsCheck = "kms-providers"

// applyAccess sets authentication and authorization. The OpenAPI configurations must exist, because
// upstream writes security definitions into them.
func applyAccess(opts options.CompletedOptions, config *genericapiserver.Config, client kubernetes.Interface, shared informers.SharedInformerFactory) error {
	ctx := wait.ContextForChannel(config.DrainedNotify())
	opts.Authentication.ServiceAccounts.OptionalTokenGetter = func(shared informers.SharedInformerFactory) serviceaccount.ServiceAccountTokenGetter {
		return tokenObjects(client, shared)
	}
	if err := opts.Authentication.ApplyTo(ctx, &config.Authentication, config.SecureServing, config.EgressSelector,
		config.OpenAPIConfig, config.OpenAPIV3Config, client, shared, config.APIServerID); err != nil {
		return err
	}
	return authorize(ctx, opts, config, shared)
}

// tokenObjects reads the objects to which tokens of service accounts are bound. It does the same as
// upstream's getter, but without a cache of all Secrets: the server becomes ready only when its
// caches are filled, and without the key manager no Secret can be read. A check of a token that is
// bound to a Secret causes a request for the Secret, and the authenticator caches the result.
func tokenObjects(client kubernetes.Interface, shared informers.SharedInformerFactory) serviceaccount.ServiceAccountTokenGetter {
	core, webhooks := shared.Core().V1(), shared.Admissionregistration().V1()
	noSecrets := corelisters.NewSecretLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}))
	return tokengetter.NewGetterFromClient(client, noSecrets, core.ServiceAccounts().Lister(), core.Pods().Lister(), core.Nodes().Lister(),
		webhooks.ValidatingWebhookConfigurations().Lister(), webhooks.MutatingWebhookConfigurations().Lister())
}

func authorize(ctx context.Context, opts options.CompletedOptions, config *genericapiserver.Config, shared informers.SharedInformerFactory) error {
	authorizer, rules, rbac, err := controlplaneapiserver.BuildAuthorizer(ctx, opts.CompletedOptions, config.EgressSelector, config.APIServerID, shared)
	if err != nil {
		return err
	}
	if !rbac {
		return errors.New("authorization: RBAC is not among the modes")
	}
	config.Authorization.Authorizer, config.RuleResolver = authorizer, rules
	// rights.go replaces this hook.
	config.DisabledPostStartHooks.Insert(rbacrest.PostStartHookName)
	return nil
}

// withoutManagedFields removes the managed fields, which the server's own caches never read.
func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

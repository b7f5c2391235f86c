package addons

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// presentRBAC returns the roles and bindings that this package has created in the cluster.
func presentRBAC(ctx context.Context, client kubernetes.Interface) (rbacObjects, error) {
	g := rbacFor(nil)
	ours := metav1.ListOptions{LabelSelector: grantLabel}
	hasOwnName := func(m metav1.ObjectMeta) bool { return strings.HasPrefix(m.Name, "orlop:addon") }
	rbac := client.RbacV1()
	clusterRoles, err := rbac.ClusterRoles().List(ctx, ours)
	if err != nil {
		return g, fmt.Errorf("roles of add-ons: %w", err)
	}
	for _, o := range clusterRoles.Items {
		if hasOwnName(o.ObjectMeta) {
			g.roles[[2]string{"", o.Name}] = o.Rules
		}
	}
	roles, err := rbac.Roles("").List(ctx, ours)
	if err != nil {
		return g, fmt.Errorf("roles of add-ons: %w", err)
	}
	for _, o := range roles.Items {
		if hasOwnName(o.ObjectMeta) {
			g.roles[[2]string{o.Namespace, o.Name}] = o.Rules
		}
	}
	clusterBindings, err := rbac.ClusterRoleBindings().List(ctx, ours)
	if err != nil {
		return g, fmt.Errorf("bindings of add-ons: %w", err)
	}
	for _, o := range clusterBindings.Items {
		if hasOwnName(o.ObjectMeta) {
			g.bindings[[2]string{"", o.Name}] = boundRole{o.RoleRef, o.Subjects}
		}
	}
	bindings, err := rbac.RoleBindings("").List(ctx, ours)
	if err != nil {
		return g, fmt.Errorf("bindings of add-ons: %w", err)
	}
	for _, o := range bindings.Items {
		if hasOwnName(o.ObjectMeta) {
			g.bindings[[2]string{o.Namespace, o.Name}] = boundRole{o.RoleRef, o.Subjects}
		}
	}
	return g, nil
}

// applyRBAC creates, changes and deletes roles and bindings until they match want. granted contains
// the roles and bindings that were created or changed, by namespace and name. A role or binding
// belongs to a single add-on, so after a failure the others are applied all the same; failed
// contains the errors.
func applyRBAC(ctx context.Context, client kubernetes.Interface, want rbacObjects) (granted map[[2]string]bool, failed map[[2]string]error, err error) {
	have, err := presentRBAC(ctx, client)
	if err != nil {
		return nil, nil, err
	}
	rbac := client.RbacV1()
	role := func(what action, at [2]string) error {
		if at[0] == "" {
			return do(ctx, rbac.ClusterRoles(), what, &rbacv1.ClusterRole{ObjectMeta: metadata(at), Rules: want.roles[at]})
		}
		return do(ctx, rbac.Roles(at[0]), what, &rbacv1.Role{ObjectMeta: metadata(at), Rules: want.roles[at]})
	}
	binding := func(what action, at [2]string) error {
		b := want.bindings[at]
		if at[0] == "" {
			return do(ctx, rbac.ClusterRoleBindings(), what, &rbacv1.ClusterRoleBinding{ObjectMeta: metadata(at), RoleRef: b.role, Subjects: b.subjects})
		}
		return do(ctx, rbac.RoleBindings(at[0]), what, &rbacv1.RoleBinding{ObjectMeta: metadata(at), RoleRef: b.role, Subjects: b.subjects})
	}
	d := compare(have, want)
	granted, failed = map[[2]string]bool{}, map[[2]string]error{}
	for _, step := range []struct {
		all  [][2]string
		what action
		do   func(action, [2]string) error
	}{
		{d.unbind, remove, binding}, {d.drop, remove, role}, {d.add, create, role}, {d.change, update, role}, {d.bind, create, binding}, {d.resubject, update, binding},
	} {
		for _, at := range step.all {
			if err := step.do(step.what, at); err != nil {
				failed[at] = fmt.Errorf("cannot grant the rights %s: %w", strings.TrimPrefix(at[0]+"/"+at[1], "/"), err)
			} else if step.what != remove {
				granted[at] = true
			}
		}
	}
	return granted, failed, nil
}

// action is an operation on a role or a binding.
type action int

const (
	create action = iota
	update
	remove
)

// objects are the methods of a typed client for one kind of object.
type objects[T metav1.Object] interface {
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, opts metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// do performs an action on an object. Deleting a missing object is not an error.
func do[T metav1.Object](ctx context.Context, all objects[T], what action, object T) (err error) {
	switch what {
	case create:
		_, err = all.Create(ctx, object, metav1.CreateOptions{})
	case update:
		_, err = all.Update(ctx, object, metav1.UpdateOptions{})
	case remove:
		if err = all.Delete(ctx, object.GetName(), metav1.DeleteOptions{}); apierrors.IsNotFound(err) {
			return nil
		}
	}
	return err
}

// ensureNamespace creates a namespace if it is missing.
func ensureNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s: cannot create: %w", name, err)
	}
	return nil
}

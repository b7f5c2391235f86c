// Package secureboot makes keys for UEFI Secure Boot and signs PE images with them. It also makes
// the files by which a boot loader enrolls the keys:
//
//	keys.go     PK, KEK and db: key, certificate and enrollment file of each
//	signer.go   the signer of a build: a key in a file, or a command
//	sign.go     the signature of an image (Authenticode)
//	enroll.go   an enrollment file (.auth): the signed content of a variable
//	pkcs7.go    the signatures in images and enrollment files
//
// The same key and the same input give the same bytes: RSA with PKCS #1 v1.5 is deterministic, and
// a signature contains no time. The package does not store keys.
package secureboot

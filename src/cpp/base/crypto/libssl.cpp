#include "base/crypto/libssl.h"

#include "base/crypto/libcrypto.h"
#include "base/crypto/opened_library.h"
#include "base/locks/fork_gate.h"

namespace fab {
namespace {

void load_streams(FunctionFinder& load, LibSsl& all) {
  load("TLS_method", all.method);
  load("SSL_CTX_new", all.new_settings);
  load("SSL_CTX_ctrl", all.control);
  load("SSL_CTX_set_ciphersuites", all.set_cipher_suites);
  load("SSL_CTX_set_num_tickets", all.set_tickets);
  load("SSL_CTX_set_psk_use_session_callback", all.on_use);
  load("SSL_CTX_set_psk_find_session_callback", all.on_find);
  load("SSL_CTX_set_keylog_callback", all.on_secret);
  load("SSL_new", all.new_stream);
  load("SSL_free", all.free_stream);
  load("SSL_set_bio", all.set_bio);
  load("SSL_set_ex_data", all.set_data);
  load("SSL_get_ex_data", all.get_data);
  load("SSL_set_verify", all.set_verify);
  load("SSL_set_connect_state", all.calls);
  load("SSL_set_accept_state", all.answers);
  load("SSL_do_handshake", all.handshake);
  load("SSL_session_reused", all.key_was_used);
  load("SSL_export_keying_material", all.export_key);
}

void load_rest(FunctionFinder& load, LibSsl& all) {
  load("SSL_CIPHER_find", all.find_suite);
  load("SSL_SESSION_new", all.new_session);
  load("SSL_SESSION_free", all.free_session);
  load("SSL_SESSION_set1_master_key", all.set_session_key);
  load("SSL_SESSION_set_cipher", all.set_session_suite);
  load("SSL_SESSION_set_protocol_version", all.set_session_version);
  load("BIO_meth_new", all.new_bio_method);
  load("BIO_meth_set_write", all.set_bio_write);
  load("BIO_meth_set_read", all.set_bio_read);
  load("BIO_meth_set_ctrl", all.set_bio_control);
  load("BIO_new", all.new_bio);
  load("BIO_set_init", all.set_bio_ready);
  load("BIO_set_data", all.set_bio_data);
  load("BIO_get_data", all.get_bio_data);
  load("BIO_set_flags", all.set_bio_flags);
  load("BIO_clear_flags", all.clear_bio_flags);
  load("BIO_test_flags", all.test_bio_flags);
  load("EVP_aes_128_gcm", all.aes_128_gcm);
  load("EVP_CIPHER_CTX_new", all.new_cipher);
  load("EVP_CIPHER_CTX_free", all.free_cipher);
  load("EVP_CipherInit_ex", all.init_cipher);
  load("EVP_CipherUpdate", all.update_cipher);
  load("EVP_CipherFinal_ex", all.finish_cipher);
  load("EVP_CIPHER_CTX_ctrl", all.control_cipher);
  load.optional("EVP_CIPHER_CTX_get_params", all.get_of_cipher);
  load.optional("EVP_CIPHER_CTX_set_params", all.set_of_cipher);
  load("ERR_peek_last_error", all.last_error);
  load("ERR_set_mark", all.set_error_mark);
  load("ERR_pop_to_mark", all.pop_errors_to_mark);
}

using OpenedSsl = OpenedLibrary<LibSsl>;

OpenedSsl open_libssl() {
  if (!libcrypto()) return {.problem = libcrypto_problem()};
  static constexpr LibraryName kNames[] = {{"libssl.so.3", "libssl.so.3 speaks no TLS 1.3"},
                                           {"libssl.so.1.1", "libssl.so.1.1 speaks no TLS 1.3"}};
  return open_first_of<LibSsl>(kNames,
                               "neither libssl.so.3 nor libssl.so.1.1 can be opened (Debian: libssl3)",
                               [](FunctionFinder& load, LibSsl& all) {
                                 load_streams(load, all);
                                 load_rest(load, all);
                                 return load.complete();
                               });
}

const OpenedSsl& opened_ssl() {
  static constinit MadeOnce<const OpenedSsl> opened;
  return opened.get(open_libssl);
}

}  // namespace

const LibSsl* libssl() noexcept { return opened_ssl().get(); }

std::string_view libssl_problem() noexcept { return opened_ssl().problem; }

}  // namespace fab
